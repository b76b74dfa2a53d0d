"""Methods, models and data of the user's own, from files outside the package."""

import json
import math
import signal
import sys
import warnings

import jax
import numpy as np
import pytest
from absl import flags

from experiments import compare, methods, plugins, schedules, tune, watching
from experiments import flags as experiment_flags
from experiments import run as experiment
from experiments.build import build_local, build_model, load_data
from fesem_jax import data
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.run.simulation import simulate
from fesem_jax.utils.errors import UserError
from tests.experiments.binaries_test import QUICK, refuses
from tests.support.commands import call, spawn
from tests.support.runs import records

METHOD = '''
import os, pathlib, signal
import jax, jax.numpy as jnp
import fesem_jax
from fesem_jax.algorithms.common import global_model

def damped(local, *, shift: float = 0.5, fast: bool = False, fatal: int = 0):
  """FedAvg that goes only a part of the way."""

  def step(state, data, cohort, key):
    mean = global_model.Averaging('by_examples')
    new, trained = global_model.train_and_average(
      local, state, data, cohort, key, mean
    )
    params = jax.tree.map(lambda a, b: a + shift * (b - a), state.params, new.params)
    return new._replace(params=params), trained.info()

  calls = []

  def between(state, info):
    calls.append(1)
    if len(calls) == fatal and not pathlib.Path('killed').exists():
      pathlib.Path('killed').touch()
      os.kill(os.getpid(), signal.SIGKILL)
    return state, info

  init = global_model.init(local)
  return fesem_jax.Algorithm(local, init, step, global_model.deployed, between)

def nothing(local): return 3
def two(local, other): return None
def needs(local, *, rate): return None
def taken(local, *, rounds: int = 3): return None
number = 5
'''

MODEL = """
import flax.linen as nn
import jax.numpy as jnp
import math
from flax import nnx
from fesem_jax import Model, models

def net(example_shape, num_classes, *, width: int = 3):
  return models.build('mlp', example_shape, num_classes, (width,))

class Flat(nn.Module):
  num_classes: int
  bias: int = 1
  @nn.compact
  def __call__(self, x):
    return nn.Dense(self.num_classes, bool(self.bias))(x.reshape(x.shape[0], -1))

class NnxFlat(nnx.Module):
  def __init__(self, size, num_classes, rngs):
    self.dense = nnx.Linear(size, num_classes, rngs=rngs)
  def __call__(self, x): return self.dense(x.reshape(x.shape[0], -1))

def linen(example_shape, num_classes, *, bias: int = 1): return Flat(num_classes, bias)
def nnx_net(example_shape, num_classes):
  return lambda rngs: NnxFlat(math.prod(example_shape), num_classes, rngs)
def nnx_made(example_shape, num_classes):
  return nnx_net(example_shape, num_classes)(nnx.Rngs(0))
def narrow(example_shape, num_classes): return net(example_shape, num_classes - 1)
def narrow_linen(example_shape, num_classes): return Flat(num_classes - 1)
def dropping(example_shape, num_classes):
  return nn.Sequential([Flat(num_classes), nn.Dropout(0.5, deterministic=False)])
def none(example_shape, num_classes): return None
def bare(example_shape, num_classes):
  return Model(lambda key: jnp.ones((64, 10)), lambda p, x: x.reshape(-1, 64) @ p)
def raises(example_shape, num_classes): raise KeyError('missing')
"""

DATA = """
import jax
import numpy as np

def blobs(*, size: int = 12):
  y = np.arange(10 * size) % 3
  x = np.random.default_rng(0).normal(size=(len(y), 4)) + 2 * y[:, None]
  return {'x': x, 'y': y, 'client': np.arange(len(y)) // size}

calls = []
def changing():
  calls.append(1)
  return blobs() | {'x': np.ones((120, len(calls)))}

def mistyped(): return blobs() | {'splits': np.zeros(120, int)}
def unlabeled(): return {'x': np.ones((3, 2)), 'client': np.arange(3)}
def none(): return None
"""


WATCH = """
import fesem_jax

class Watch(fesem_jax.Callback):
  def on_round(self, event):
    with open('watched', 'a') as file:
      file.write(f'{event.number} ')

def watch(): return Watch()
def both(): return [Watch(), Watch()]
def no_callback(): return 3
def needs(what): return Watch()
def raises(): raise KeyError('missing')
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A current directory that holds modules of the user's own."""
  own = {'own_fl': METHOD, 'own_net': MODEL, 'own_data': DATA, 'own_watch': WATCH}
  for name, text in own.items():
    (tmp_path / f'{name}.py').write_text(text)
  (tmp_path / 'broken.py').write_text('import no_such_module')
  monkeypatch.chdir(tmp_path)
  plugins.load.cache_clear()
  yield tmp_path
  for name in (*own, 'broken'):
    sys.modules.pop(name, None)
  sys.path[:] = [p for p in sys.path if p != str(tmp_path)]


@pytest.fixture
def parse():
  """Sets the flags of run."""
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()

  def parsed(*given):
    flags.FLAGS.unparse_flags()
    for name in flags.FLAGS:
      if name in experiment_flags.common() or name.endswith('_options'):
        flags.FLAGS[name].unparse()
    flags.FLAGS(['run', *given])

  flags.FLAGS(['run'])
  yield parsed
  parsed()


@pytest.mark.nightly
@pytest.mark.slow
def test_an_own_method_in_compare_goes_on_after_a_kill(folder):
  arguments = [
    '--num_seeds=1', '--rounds=4', '--checkpoint_every=1', '--lr_schedule=step:2:0.5',
    *(a for a in QUICK if 'rounds' not in a),
  ]  # fmt: skip
  fatal = '--algorithms=fed_avg,own_fl:damped(shift=0.25;fatal=3)'
  first = spawn('compare', *arguments, fatal, '--workdir=table', cwd=folder)
  assert first.returncode == -signal.SIGKILL
  run = folder / 'table' / 'own_fl:damped(shift=0.25;fatal=3)' / 'seed0'
  assert [r['round'] for r in records(run)][-1] == 2
  second = spawn('compare', *arguments, fatal, '--workdir=table', cwd=folder)
  assert second.returncode == 0, second.stderr
  assert 'own_fl:damped(shift=0.25;fatal=3)' in second.stdout
  assert (folder / 'table' / 'table.md').exists()
  config = json.loads((run / 'config.json').read_text())
  assert (config['shift'], config['fast'], config['fatal']) == (0.25, False, 3)
  # The same in one go, by the other binary.
  single = [
    *arguments[1:], '--algorithm=own_fl:damped', '--workdir=single',
  ]  # fmt: skip
  options = '--algorithm_options=shift=0.25,fatal=3'
  watched = '--callbacks=own_watch:watch', '--quiet', '--log_to=tensorboard'
  unbroken = spawn('run', *single, options, *watched, cwd=folder)
  assert unbroken.returncode == 0, unbroken.stderr
  assert (folder / 'watched').read_text() == '1 2 3 4 '
  assert list((folder / 'single' / 'tensorboard').iterdir())
  assert 'training' not in unbroken.stdout  # The description.
  assert 'deployed' in unbroken.stdout
  assert records(folder / 'single') == records(run)
  other = spawn('run', *single, '--algorithm_options=shift=0.5', cwd=folder)
  assert other.returncode == 1
  assert '(there: 0.25, now: 0.5)' in other.stderr


def test_code_that_changed_since_a_run_began_is_warned_of(folder, tmp_path):
  config = {'algorithm': 'own_fl:damped', 'model': 'mlp', 'dataset': 'digits'}
  assert methods.checked_name('own_fl:damped') == 'own_fl:damped'
  said = []
  first = plugins.identity(config, tmp_path, said.append)
  assert list(first['own_code']) == ['algorithm']
  (tmp_path / 'config.json').write_text(json.dumps(config | first))
  assert plugins.identity(config, tmp_path, said.append) == first
  assert said == []
  path = folder / 'own_fl.py'
  code = path.read_text()
  path.write_text(code + '# Changed.\n')
  plugins._code.cache_clear()
  try:
    assert plugins.identity(config, tmp_path, said.append) != first
  finally:
    path.write_text(code)
    plugins._code.cache_clear()
  assert said[0].startswith('Warning: the file of own_fl:damped changed after the run')
  assert plugins.identity(config | {'algorithm': 'fesem'}, tmp_path, None) == {}


@pytest.mark.nightly
def test_a_comparison_marks_runs_of_earlier_code_and_does_them_again(
  tmp_path, monkeypatch
):
  monkeypatch.syspath_prepend(tmp_path)
  path = tmp_path / 'own_redone.py'
  path.write_text(METHOD)
  arguments = [
    '--algorithms=fed_avg,own_redone:damped', '--num_seeds=1', '--workdir=table',
    '--tune=learning_rate:0.1', '--tune_seeds=1', *QUICK,
  ]  # fmt: skip

  def table(*more):
    sys.modules.pop('own_redone', None)  # As in a process of its own.
    plugins.load.cache_clear()
    plugins._code.cache_clear()
    done = call('compare', *arguments, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / 'table/table.md').read_text().splitlines()
    return lines, done.stdout

  def cells(lines):
    start = next(i for i, line in enumerate(lines) if line.startswith('|---'))
    rows = [line.split(' | ') for line in lines[start + 1 : start + 3]]
    return {row[0]: row[1:5] for row in rows}

  first, _ = table()
  assert list(cells(first)) == ['| fed_avg', '| own_redone:damped']
  path.write_text(METHOD.replace('+ shift * (b - a)', '+ 0 * (b - a)'))
  old, said = table()
  assert '† 1 of 1 runs are of earlier code' in '\n'.join(old)
  assert cells(old)['| own_redone:damped †'] == cells(first)['| own_redone:damped']
  assert cells(old)['| fed_avg'] == cells(first)['| fed_avg']
  assert 'own_redone:damped was tuned with earlier code in 1 of 1 runs' in said
  assert '--redo=own_redone:damped runs what is marked by † again' in said
  kept = tmp_path / 'table/fed_avg/seed0/summary.json'
  before = kept.stat().st_mtime_ns
  new, said = table('--redo=own_redone:damped')
  assert '†' not in '\n'.join(new) + said
  assert 'earlier code' not in '\n'.join(new) + said
  assert cells(new)['| own_redone:damped'] != cells(first)['| own_redone:damped']
  assert kept.stat().st_mtime_ns == before
  wrong = call('compare', *arguments, '--redo=fesem', cwd=tmp_path)
  assert wrong.returncode == 1
  assert '--redo=fesem is none of the methods of the table: fed_avg' in wrong.stderr
  assert kept.exists()


def test_own_callbacks_come_before_loggers(folder):
  found = watching.callbacks(
    {'callbacks': ['own_watch:both', 'own_watch:watch'], 'log_to': ['tensorboard'],
     'tensorboard': True}
  )  # fmt: skip
  assert [type(c).__name__ for c in found] == [*['Watch'] * 3, 'TensorBoard']


@pytest.mark.parametrize(
  ('machine', 'message'),
  [
    ({'callbacks': ['own_watch']}, '--callbacks=own_watch is not MODULE:FUNCTION'),
    ({'callbacks': ['own_watch:no']}, 'the module own_watch has no no'),
    ({'callbacks': ['own_watch:needs']}, r'cannot be called as needs\(\)'),
    ({'callbacks': ['own_watch:no_callback']}, 'must return .*; it returned int'),
    ({'callbacks': ['own_watch:raises']}, 'raised KeyError .*; see the traceback'),
    ({'log_to': ['paper']}, '--log_to=paper is unknown; choose one of tensorboard, wa'),
  ],
)
def test_callbacks_that_cannot_be_used_are_one_sentence(
  folder, parse, machine, message
):
  with refuses(message):
    watching.callbacks(machine)


def test_own_models_and_data_are_built_with_their_options(folder, parse):
  parse('--model=own_net:net', '--model_options=width=7',
        '--dataset=own_data:blobs', '--dataset_options=size=15')  # fmt: skip
  config = experiment_flags.configuration('own_fl:damped', {'shift': 0.1})
  assert config['model_options'] == {'width': 7}
  assert config['dataset_options'] == {'size': 15}
  train, test = load_data(config)
  assert train.num_clients == 10
  assert len(train.y) + len(test.y) == 150
  model = build_model(config, train)
  assert model.init(jax.random.key(0))['dense0']['kernel'].shape == (4, 7)
  json.dumps(config)


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('no_such:thing', 'the module no_such cannot be imported .*ModuleNotFoundError'),
    ('broken:thing', 'broken cannot be imported .*no_such_module'),
    ('own_fl:absent', 'the module own_fl has no absent'),
    ('own_fl:number', r'number is int, not a function; .*number\(local\)'),
    ('own_fl:two', r"cannot be called as two\(local\) \(missing .*'other'\)"),
    ('own_fl:needs', r"cannot be called as needs\(local\) \(missing .*'rate'\)"),
    ('own_fl:taken', 'its option rounds has the name of a flag of all methods'),
    ('fedavgg', '--algorithm=fedavgg is unknown; .*is MODULE:FUNCTION'),
  ],
)
def test_own_methods_that_cannot_be_used_are_one_sentence(folder, parse, name, message):
  with refuses(message):
    experiment_flags.configuration(name, {})


def test_an_own_method_must_return_an_algorithm(folder, parse):
  with refuses('--algorithm=own_fl:nothing must return .*; it returns int'):
    methods.build('own_fl:nothing', None, {})


@pytest.mark.parametrize(
  ('text', 'message'),
  [('beta=1', 'there is no option beta; there are: shift, fast, fatal'),
   ('shift', 'is not NAME=VALUE'), ('shift=fast', "shift: 'fast' is no float"),
   ('shift=nan', "shift: 'nan' is not finite"), ('fatal=1.5', "fatal: '1.5' is no int"),
   ('fast=maybe', "fast: 'maybe' is neither true nor false"),
   ('shift=1,shift=2', 'sets shift twice')],
)  # fmt: skip
def test_bad_options_of_own_methods_are_one_sentence(folder, parse, text, message):
  with refuses(f'--algorithm_options={text}.*{message}'):
    methods.own_options('own_fl:damped', text)


def test_options_of_own_methods_have_the_types_of_their_defaults(folder, parse):
  found = methods.own_options('own_fl:damped', 'shift=1, fast=true,fatal=2')
  assert found == {'shift': 1.0, 'fast': True, 'fatal': 2}
  assert type(found['shift']) is float
  assert methods.own_options('own_fl:damped', '') == {}
  with refuses('the options of fesem are flags of their own'):
    methods.own_options('fesem', 'num_clusters=3')
  with refuses('--prox_lambda does not apply to --algorithm=own_fl:damped'):
    experiment_flags.configuration('own_fl:damped', {'prox_lambda': 0.1})
  # Flags of this package may have another type.
  config = experiment_flags.configuration('own_fl:damped', {'shift': 1, 'fatal': 2})
  assert type(config['shift']) is float
  with refuses("--algorithm=own_fl:damped: fatal: '0.5' is no int"):
    tune.points('own_fl:damped', config, {'fatal': [0.5]})
  # They are tuned as options of this package are.
  own = methods.options_of_own(['fesem', 'own_fl:damped'])
  assert tune.parse_search('shift:1,0.5', own=own) == ('shift', [1.0, 0.5])
  assert tune.points('own_fl:damped', config, {'shift': [0.5]}) == [{'shift': 0.5}]
  with refuses("--tune=fatal:x: 'x' is no value of --fatal"):
    tune.parse_search('fatal:x', own=own)
  with refuses('--tune=shift:1 is not FLAG:VALUE'):
    tune.parse_search('shift:1')


def test_an_option_that_holds_a_path_stays_in_the_workdir():
  assert methods.folder_of('own:f(start=a/../b)') == 'own:f(start=a_.._b)'


def test_own_methods_come_last_in_a_table(folder, parse):
  listed = ['own_fl:damped(fast=True)', 'fesem(2)', 'own_fl:damped(learning_rate=1.0)']
  table = compare.configurations(listed, 1, {})
  assert list(table) == ['fesem(2)', *listed[::2]]
  assert table[listed[0]][0]['fast'] is True
  assert table[listed[2]][0]['learning_rate'] == 1.0
  for text, message in (
    ('own_fl:damped(beta=1)', 'beta does not apply'),
    ('own_fl:damped(3)', 'num_clusters does not apply'),
    ('own_fl:damped(shift=x)', 'is no float'),
    ('own_fl:absent', '--algorithms: .*has no absent'),
  ):
    with refuses(message):
      methods.parse_method(text)


def test_own_models_that_cannot_be_used_are_one_sentence(folder, parse):
  train, _ = data.load('digits', num_clients=4)
  for name, message in (
    ('own_net:none', '--model=own_net:none must return .*; it returns NoneType'),
    ('own_net:narrow', r'--model=own_net:narrow: two .* \(2, 9\), not \(2, 10\)'),
    ('own_net:narrow_linen', r'--model=own_net:narrow_linen: two .* \(2, 9\), not'),
    ('own_net:dropping', '--model=own_net:dropping: Sequential has Dropout'),
    ('own_net:nnx_made', '--model=own_net:nnx_made: NnxFlat is no Linen module'),
    ('own_net:bare', '--model=own_net:bare: init gives a single array'),
    ('own_net:raises', '--model=own_net:raises raised KeyError .*traceback above'),
  ):
    parse(f'--model={name}')
    config = experiment_flags.configuration('fed_avg', {})
    with refuses(message):
      build_model(config, train)
  parse('--model=own_net:absent')
  with refuses('--model=own_net:absent: the module own_net has no absent'):
    experiment_flags.configuration('fed_avg', {})
  parse('--dataset_options=width=3')
  with refuses('--dataset_options=width=3 is for --dataset=MODULE:FUNCTION, and not'):
    experiment_flags.configuration('fed_avg', {})


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    ('mlp --model_options=width=3', 'there is no option width; there are: none'),
    ('gru --model_options=num_classes=3', 'there are: embedding, width, depth'),
    ('gru --model_options=width=0',
     'width must be a whole number from 1 to 1,048,576, but'),
    ('gru --model_options=width=50000',
     'makes 22,506,100,810 weights, more than 2,147,'),
    ('transformer --model_options=heads=5', 'be built with width=128, depth=2, heads='),
  ],
)  # fmt: skip
def test_options_of_models_of_the_package_are_checked(parse, given, message):
  parse(*f'--model={given}'.split())
  zeros = np.zeros((4, 8), np.float32)
  tokens = FederatedData.from_arrays(zeros, np.zeros(4, int), [2, 2], num_classes=90)
  with refuses(message):
    build_model(experiment_flags.configuration('fed_avg', {}), tokens)


def test_own_models_may_be_flax_modules(folder, parse):
  train, test = data.load('digits', num_clients=4, examples_per_client=20)
  for name, layer, options, leaves in (
    ('nnx_net', 'dense', '', 2),
    ('linen', 'Dense_0', 'bias=0', 1),
  ):
    parse(f'--model=own_net:{name}', f'--model_options={options}')
    config = experiment_flags.configuration('fed_avg', {})
    model = build_model(config, train)
    params = model.init(jax.random.key(0))
    assert params[layer]['kernel'].shape == (64, 10)
    assert len(jax.tree.leaves(params)) == leaves
  local = build_local(config, model, train, experiment_flags.machine())
  result = simulate(
    methods.configured(config, local), train, test, rounds=2, eval_every=0,
    finetune_epochs=0,
  )  # fmt: skip
  losses = [record['train_loss'] for record in result.history]
  assert losses[1] < losses[0]


def test_own_data_that_cannot_be_used_is_one_sentence(folder, parse):
  for name, message in (
    ('unlabeled', '--dataset=own_data:unlabeled lacks the array y'),
    ('mistyped', '--dataset=own_data:mistyped has an array splits, .* client, split,'),
    ('none', '--dataset=own_data:none: arrays is a NoneType; give a dict of arrays'),
  ):
    parse(f'--dataset=own_data:{name}')
    config = experiment_flags.configuration('fed_avg', {})
    with refuses(message):
      load_data(config)


def test_own_data_that_differ_at_each_call_are_not_reproducible(folder, parse):
  parse('--dataset=own_data:changing')
  config = experiment_flags.configuration('fed_avg', {})
  load_data(config)
  with refuses(r'--dataset=own_data:changing is not reproducible: its arrays differ'):
    load_data(config)
  for size in (12, 13, 12):  # The same of the same options.
    parse('--dataset=own_data:blobs', f'--dataset_options=size={size}')
    load_data(experiment_flags.configuration('fed_avg', {}))


def test_schedules_over_rounds_by_name():
  expected = {
    'cosine:4': [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2],
    'exponential:0.5': [1, 0.5, 0.25, 0.125],
    'step:2:0.1': [1, 1, 0.1, 0.1],
  }
  for text, rates in expected.items():
    schedule = schedules.build(text)
    np.testing.assert_allclose([schedule(r) for r in range(4)], rates, rtol=1e-5)
  assert schedules.build('constant') is None
  assert schedules.resolved('cosine', 4) == 'cosine:4'
  assert schedules.resolved('step:2:0.1', 4) == 'step:2:0.1'
  for text in ('linear', 'cosine:x', 'cosine:0', 'step:2', 'step:1.5:0.1',
               'exponential:-1', 'exponential:nan', 'exponential:1e300',
               'exponential:1e-300', 'constant:1', ''):  # fmt: skip
    with (
      pytest.raises(UserError, match=r'`lr_schedule=.*` must be constant, cosine'),
      warnings.catch_warnings(action='error'),
    ):
      schedules.build(text)


@pytest.mark.parametrize('flag', ['algorithm', 'model', 'dataset'])
def test_an_exception_of_own_code_names_the_flag_after_its_traceback(flag, capsys):
  with (
    pytest.raises(
      UserError, match=rf'`{flag}=own:f` raised KeyError .*traceback above'
    ),
    plugins.running(flag, 'own:f'),
  ):
    raise KeyError('missing')
  assert 'Traceback' in capsys.readouterr().err


def test_own_code_that_calls_sys_exit_is_no_success(folder, capsys):
  (folder / 'broken.py').write_text('import sys; sys.exit(0)')
  with refuses(r'broken cannot be imported \(SystemExit: 0\)'):
    plugins.load('algorithm', 'broken:f', 'local')
  with refuses(r'raised SystemExit \(0\)'), plugins.running('model', 'own:f'):
    sys.exit(0)
  assert 'Traceback' in capsys.readouterr().err


def test_mistakes_of_users_pass_through():
  with pytest.raises(UserError, match='said already'), plugins.running('model', 'a:b'):
    raise UserError('said already')
