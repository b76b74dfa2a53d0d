"""Options as flags: kinds, bounds, presets, help, and what they build."""

import dataclasses
import importlib
import math
import pkgutil
import re
import warnings

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import experiments
from experiments import flags as experiment_flags
from experiments import methods, options, start, usage
from experiments import run as experiment
from experiments.build import build_schedule, build_selection, file_digests
from fesem_jax import algorithms
from fesem_jax.analysis import report
from fesem_jax.core.selection import available
from fesem_jax.utils import progress_lines
from fesem_jax.utils.errors import UserError
from tests.experiments.binaries_test import QUICK, refuses
from tests.support.commands import ROOT, call


@pytest.fixture
def configured():
  """The configuration of some flags."""
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()

  @flagsaver.flagsaver
  def made(*arguments):
    flags.FLAGS(['run', *QUICK, *arguments])
    return experiment.chosen_configuration()

  return made


def flags_of_binaries(*folders):
  """Names of the flags of all binaries, and of those that files of folders define."""
  defined = re.compile(r"DEFINE\w*\([^']*'(\w+)'")
  texts = [path.read_text() for folder in folders for path in folder.rglob('*.py')]
  names = {name for text in texts for name in defined.findall(text)}
  for module in pkgutil.iter_modules(experiments.__path__, 'experiments.'):
    for cls in vars(importlib.import_module(module.name)).values():
      declares = getattr(cls, '__module__', '').startswith('experiments.')
      if declares and dataclasses.is_dataclass(cls):
        names |= {field.name for field in dataclasses.fields(cls)}
  return names | {*methods.shared_options()}


def test_all_binaries_have_few_flags():
  names = flags_of_binaries(ROOT / 'experiments', ROOT / 'reproductions')
  assert len(names) <= 130


def test_what_determines_a_run_is_in_its_configuration(configured):
  config = configured('--drift_rounds=3,5', '--clients_per_round=0.5', '--seed=4')
  assert (config['drift_rounds'], config['clients_per_round']) == ([3, 5], 0.5)
  assert {'seed', 'rounds', 'dp', 'partition', 'eval_every', 'num_clusters'} <= {
    *config
  }
  machine = experiment_flags.machine()
  assert {'data_dir', 'report', 'num_devices', 'process_id', 'resume'} <= {*machine}
  assert not {*config} & {*machine}
  texts = 'dirichlet(0.1)+rotated(2)', 'rotated(groups=2) + dirichlet(alpha=0.1)'
  partitions = [configured(f'--partition={text}')['partition'] for text in texts]
  assert partitions == ['rotated(groups=2)+dirichlet(alpha=0.1)'] * 2


@pytest.mark.parametrize(
  ('name', 'text', 'value'),
  [
    ('seed', '3', 3), ('seed', '-1', None), ('seed', 'x', None),
    ('learning_rate', '1e-3', 1e-3), ('learning_rate', 'nan', None),
    ('clients_per_round', '3', 3), ('clients_per_round', '1.0', 1.0),
    ('hidden', '8, 4', [8, 4]), ('hidden', '8,x', None), ('hidden', '', []),
    ('task', '', ''), ('task', 'clasification', None), ('precision', 'low', None),
    ('resume', 'false', False), ('resume', 'no', None), ('log_to', 'a,b', ['a', 'b']),
  ],
)  # fmt: skip
def test_values_have_the_type_and_bounds_of_their_field(name, text, value):
  if value is None:
    with refuses(name):
      options.OPTIONS[name].parse(text)
  else:
    result = options.OPTIONS[name].parse(text)
    assert (result, type(result)) == (value, type(value))


@pytest.fixture
def asked(capsys):
  """What --help=TOPIC of a run prints."""
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()

  def ask(form='--help'):
    with pytest.raises(SystemExit) as ended:
      start.parse_flags(['run', '--rounds=3', form])
    printed = capsys.readouterr()
    assert ended.value.code == bool(printed.err)
    return printed.out or printed.err

  return ask


def test_help_has_all_topics_flags_and_methods(asked):
  for topic, cls in options.TOPICS.items():
    page = asked(f'--help={topic}')
    assert max(map(len, page.splitlines())) <= 88
    for option in options.fields(cls):
      assert re.search(rf'\n?  --(\[no\])?{option.name}\b', page), option.name
      assert len(option.words) <= 80, option.name
      assert option.name in asked(f'--help={option.name}')
  for name in algorithms.METHODS:
    assert f'\n  {name} ' in asked('--help=methods')
    assert asked(f'--help={name}').startswith(f'--algorithm={name}')
  assert '--weighting' in asked('--helpfull')
  assert 'noisy(variance=0.1): ' in asked('--help=partition')
  for topic, near in (('fesm', 'fesem'), ('learnin_rate', 'learning_rate')):
    assert re.search(rf'did you mean .*\b{near}\b', asked(f'--help={topic}'))


def test_help_is_one_page():
  lines = call('run', '--help', cwd=ROOT).stdout.splitlines()
  assert len(lines) <= 40
  assert max(map(len, lines)) <= 88
  assert usage.requested_topic(['run', '--', '--help']) is None


def test_flags_of_files_and_presets_stand_in_their_place(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'my.flags').write_text('# Mine.\n--flagfile=demo\n\n--rounds=3\n')
  (tmp_path / 'all.flags').write_text('--flagfile=demo\n--flagfile=all.flags\n')
  (tmp_path / 'table2').mkdir()  # Hides no preset.
  demo = start.expanded(['--flagfile=demo'])
  assert demo[0] == '--algorithms=non_fed,fed_avg,fesem(4)'
  for arguments in (
    ['-flagfile=demo'], ['--flagfile', 'demo'], ['--flagfile=demo.flags'],
    ['--flagfile=experiments/presets/demo.flags'],
  ):  # fmt: skip
    assert start.expanded(['--seed=1', *arguments, '--x']) == ['--seed=1', *demo, '--x']
  arguments = ['--flagfile=my.flags', '--', '--flagfile=none']
  assert start.expanded(arguments) == [*demo, '--rounds=3', *arguments[1:]]
  assert not any('flagfile' in flag for flag in start.expanded(['--flagfile=table2']))
  (tmp_path / 'binary').write_bytes(bytes(range(256)))
  for name in ('binary', 'none', 'all.flags', '.'):
    with refuses('flagfile|binary'):
      start.expanded([f'--flagfile={name}'])


def test_schedules_over_rounds_by_name():
  cosine = [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
  expected = {
    'cosine': cosine, 'cosine:4': cosine, 'exponential:0.5': [1, 0.5, 0.25, 0.125],
    'step:2:0.1': [1, 1, 0.1, 0.1],
  }  # fmt: skip
  for text, rates in expected.items():
    schedule = build_schedule(text, 4)
    np.testing.assert_allclose([schedule(r) for r in range(4)], rates, rtol=1e-5)
  assert build_schedule('constant', 4) is None
  for text in (
    'linear', 'cosine:x', 'cosine:0', 'step:2', 'step:1.5:0.1', 'exponential:-1',
    'exponential:nan', 'exponential:1e300', '',
  ):  # fmt: skip
    with refuses('lr_schedule'), warnings.catch_warnings(action='error'):
      build_schedule(text, 4)


def test_the_flag_names_a_selection(tmp_path):
  trace = tmp_path / 'trace.csv'
  trace.write_text('\ufeffclient,from,to,note\nc1,1,2,x\n"c,3",2,5,\n')

  def build(select, count=2):
    return build_selection({'select': select, 'clients_per_round': count}, 20)

  assert build('uniform', 3) == 3
  name = 'power_of_choice(2, candidates=5)'
  assert build('power_of_choice:5', 0.1).name == name
  rows = [('c1', 1, 2), ('c,3', 2, 5)]
  assert build(f'trace:{trace}').name == available(2, rows).name
  first = file_digests({'select': f'trace:{trace}'})
  trace.write_text('client,from,to\nc1,1,3\n')
  assert first != file_digests({'select': f'trace:{trace}'})
  for select, count in (
    ('power_of_choice', 2), ('power_of_choice:x', 2), ('power_of_choice:5', 0),
    ('best', 2), ('uniform:3', 2), ('trace:', 2),
  ):  # fmt: skip
    with pytest.raises(UserError, match='select'):
      build(select, count)


def test_a_quiet_run_that_a_callback_ends_says_why(tmp_path, monkeypatch):
  (tmp_path / 'early_stop.py').write_text(
    'import fesem_jax as fj\n'
    'class Early(fj.Callback):\n'
    '  def on_round(self, event):\n'
    "    return fj.Stop('enough')\n"
  )
  shown = []
  monkeypatch.setattr(
    report, 'write_report', lambda *_: shown.append(progress_lines.current.get())
  )
  done = call(
    'run', '--dataset=synthetic_linear(groups=2)', '--num_clients=6', '--rounds=2',
    '--model=logistic', '--algorithm=fed_avg', '--workdir=run', '--quiet',
    '--callbacks=early_stop:Early', '--report_html=true', cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert 'Ended after round 1: enough' in done.stdout
  assert shown == [None]
