"""The binaries as a user runs them."""

import csv
import json
import re

import jax
import numpy as np
import pytest
from absl import flags

import fesem_jax
from experiments import compare, comparisons, methods, start
from experiments import flags as experiment_flags
from experiments import run as experiment
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.utils.errors import UserError
from reproductions import recipes
from tests.support import helpers
from tests.support import sources as sources_test
from tests.support.commands import ROOT, call, flags_of_a_new_process, spawn

# Clients of one size, so that all seeds of a command run in the same programs.
QUICK = [
  '--dataset=digits', '--partition=rotated', '--num_clients=12', '--rounds=2',
  '--examples_per_client=100', '--local_epochs=1', '--finetune_epochs=0', '--hidden=8',
]  # fmt: skip


# The same with the smallest model, where no test asks for layers.
LOGISTIC = [*(flag for flag in QUICK if 'hidden' not in flag), '--model=logistic']


def refuses(subject):
  """Expects a `UserError` on a subject."""
  return pytest.raises(UserError, match=subject)


@pytest.fixture(scope='module')
def parsed_flags():
  """All flags of run at their defaults."""
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()
  flags.FLAGS(['run'])
  return flags.FLAGS


def test_server_optimizers_are_built_of_their_expressions():
  gradient = np.array([0.5, -2.0])

  def second_step(optimizer):
    _, state = optimizer.update(gradient, optimizer.init(gradient))
    return optimizer.update(gradient, state)[0]

  for text, rate, built in (
    ('yogi(beta1=0.8, tau=0.01)', 0.3, server_optimizers.yogi(0.3, 0.8, tau=0.01)),
    ('adagrad(0.2, beta1=0.9)', None, server_optimizers.adagrad(0.2, beta1=0.9)),
    ('adam', None, server_optimizers.adam()),
  ):
    chosen = {'server_optimizer': text, 'server_learning_rate': rate}
    result = methods.server_optimizer(chosen)
    np.testing.assert_array_equal(second_step(result), second_step(built))
  assert methods.server_optimizer(methods.options('fesem')) is None


@pytest.mark.parametrize(
  ('chosen', 'subject'),
  [
    ({'server_optimizer': 'adagrad(beta2=0.5)'}, 'server_optimizer'),
    ({'server_optimizer': 'mean', 'server_learning_rate': 1.0}, 'server_learning_rate'),
    ({'server_optimizer': 'adam', 'server_learning_rate': -1.0}, 'learning_rate'),
    ({'server_optimizer': 'momentum(beta1=1.0)'}, 'beta1'),
  ],
)
def test_a_server_optimizer_refuses_numbers_that_it_does_not_have(chosen, subject):
  with refuses(subject):
    methods.server_optimizer(chosen)


def test_a_configuration_holds_the_defaults_of_its_method(parsed_flags):
  config = experiment_flags.configuration('fesem', {'num_clusters': 3})
  assert (config['num_clusters'], config['prox_lambda']) == (3, 0.01)
  assert (config['batch_size'], config['algorithm']) == (10, 'fesem')
  assert 'prox_lambda' not in experiment_flags.configuration('fed_avg', {})
  with refuses('num_clusters'):
    experiment_flags.configuration('fed_avg', {'num_clusters': 3})


BUILT = set()


def build_of(text, options):
  """Builds a method as a row, and flags as options, where no test has built it."""
  name, chosen = methods.parse_method(methods.split_label(text)[1])
  methods.check_options(name, options)
  allowed = methods.options(name)
  chosen = {o: x for o, x in (dict(options) | chosen).items() if o in allowed}
  if (row := f'{name} {chosen}') not in BUILT:
    methods.build(name, helpers.local(), chosen)
    BUILT.add(row)


@pytest.mark.parametrize('preset', start.preset_names())
def test_presets_parse_and_build_their_methods(preset, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # Presets within presets are found anywhere.
  with flags_of_a_new_process():
    compare.define_flags()
    flags.DEFINE_string('algorithm', '', '')
    flags.FLAGS(['compare', *start.expanded([f'--flagfile={preset}'])])
    listed = [flags.FLAGS.algorithm] if flags.FLAGS.algorithm else []
    for text in listed or flags.FLAGS.algorithms:
      build_of(text, experiment_flags.chosen_options() if listed else {})
    for text in flags.FLAGS.tune:
      comparisons.parse_values(text)


@pytest.mark.parametrize('name', recipes.names())
def test_recipes_parse_and_build_their_methods(name):
  recipe = recipes.read(name)
  with flags_of_a_new_process():
    experiment.define_flags()
    cells = [recipe.source_of(cell).flags for cell in recipe.cells]
    for cell in [*cells, recipe.small_flags()]:
      flags.FLAGS.unparse_flags()
      for flag in methods.shared_options():
        flags.FLAGS[flag].unparse()
      flags.FLAGS(['run', *cell])
      build_of(flags.FLAGS.algorithm, experiment_flags.chosen_options())


def test_methods_of_a_comparison(parsed_flags):
  assert methods.parse_method(' fesem(4) ') == ('fesem', {'num_clusters': 4})
  assert methods.parse_method('fed_avg') == ('fed_avg', {})
  chosen = {'aggregation': 'krum(2)', 'num_clusters': 3}
  assert methods.parse_method('robust(aggregation=krum(2);3)') == ('robust', chosen)
  assert methods.split_label('A=fesem(aggregation=krum(2))')[0] == 'A'
  for text, subject in (
    ('fesem(x)', 'algorithms'),
    ('fesem(4;prox_lambd=1)', 'did you mean prox_lambda'),
    ('fedsem', 'fedsem'),
    ('fed_avg(3)', 'num_clusters'),
    ('fed_avg(seed=1)', 'seed'),
    ('fesem(4;learning_rate=fast)', 'learning_rate'),
    ('fesem(4', 'algorithms'),
    ('fesem(4)(4)', 'algorithms'),
  ):
    with refuses(subject):
      methods.parse_method(text)
  table = comparisons.configurations(['fed_avg', 'fesem(2)'], {'prox_lambda': 0.5})
  assert list(table) == ['fed_avg', 'fesem(2)']
  assert table['fesem(2)']['prox_lambda'] == 0.5
  # As typed, each with its own flags.
  listed = ['IFCA(4)', 'fesem(2;learning_rate=0.5)', 'fed_sgd(rounds=9)', 'fesem(2)']
  table = comparisons.configurations(listed, {})
  assert list(table) == listed
  assert table['IFCA(4)']['algorithm'] == 'hypo_cluster'
  assert table['fesem(2;learning_rate=0.5)']['learning_rate'] == 0.5
  assert table['fesem(2)']['learning_rate'] != 0.5
  assert table['fed_sgd(rounds=9)']['rounds'] == 9
  listed = ['Ours=fesem(4;rounds=9)', 'IFCA=hypo_cluster(2)', 'FedAvg']
  table = comparisons.configurations(listed, {})
  assert list(table) == ['Ours', 'IFCA', 'FedAvg']
  assert (table['Ours']['algorithm'], table['Ours']['rounds']) == ('fesem', 9)
  for listed in (['fesem', 'fesem(4)'], ['a/b=fesem'], ['A=fesem', 'A=fed_avg']):
    with refuses('algorithms'):
      comparisons.configurations(listed, {})
  with refuses('prox_lambda'):
    comparisons.configurations(['fed_avg'], {'prox_lambda': 0.5})


@pytest.mark.parametrize(
  ('error', 'sentence'),
  [
    (UserError('a name\x1b[2J\ud800' + 'n' * 10**6), 'error: a name?[2J?nnn'),
    (UserError('rounds: must be 1'), 'error: --rounds: must be 1'),
    (MemoryError('Unable to allocate 7 TiB'), 'error: memory: Unable to al'),
    (
      jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory'),
      'error: device memory: RESOURCE_EXHAUSTED',
    ),
  ],
)
def test_a_mistake_is_one_short_line(parsed_flags, capsys, error, sentence):
  def fail(argv):
    raise error

  with pytest.raises(SystemExit) as ended:
    start.main_with_clear_errors(fail)([])
  assert ended.value.code == 1
  output = capsys.readouterr().err
  assert output.startswith(sentence)
  assert len(output) < 2100
  assert len(output.splitlines()) == 1


@pytest.mark.slow
def test_a_preset_runs_on_its_data(tmp_path):
  sources_test.write_original(tmp_path / 'data' / 'celeba')
  done = call(
    'run', '--flagfile=table3/fesem_2', '--rounds=1', '--local_epochs=1',
    f'--data_dir={tmp_path}/data', f'--workdir={tmp_path}/run', '--model=logistic',
    cwd=ROOT,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  assert summary['num_clients'] == 2
  assert 0 <= summary['label_skew'] < 1


def test_version_is_that_of_the_package(capsys):
  with pytest.raises(SystemExit) as ended:
    start.parse_flags(['run', '--version'])
  assert ended.value.code == 0
  assert capsys.readouterr().out == f'fesem_jax {fesem_jax.__version__}\n'


@pytest.mark.slow
def test_data_are_inspected_subsampled_converted_and_drawn(tmp_path):
  sources_test.write_leaf(tmp_path / 'leaf_femnist', sources_test.writers())
  shared = ['--dataset=femnist', f'--data_dir={tmp_path}']
  done = spawn(
    'data', *shared, '--partition=natural(min_examples=4)', '--plots=plots',
    '--output=out/two', cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert 'clients' in done.stdout
  assert (tmp_path / 'plots' / 'clients.png').stat().st_size > 5000
  again = call('data', '--dataset=saved(out/two)', cwd=tmp_path)
  assert again.stdout.splitlines()[:5] == done.stdout.splitlines()[:5]
  few = call('data', *shared, '--partition=natural(min_examples=100)', cwd=tmp_path)
  assert few.returncode == 1
  assert 'min_examples' in few.stderr


@pytest.mark.slow
def test_run_resume_and_figures(tmp_path):
  args = [*LOGISTIC, '--algorithm=fesem', '--num_clusters=4', '--workdir=here']
  first = spawn('run', *args, cwd=tmp_path)
  assert first.returncode == 0, first.stderr
  assert 'fesem on digits: 12 clients' in first.stdout
  assert 'ARI' in first.stdout
  assert first.stdout.endswith('\nReport: fesem-report here writes it.\n')
  # Where there is no terminal, only what takes long is told.
  assert re.sub(r'(?m)^[\w ,]+( \.\.\.|: [\d.]+ s)\n', '', first.stderr) == ''
  more = call('run', *args, '--rounds=4', '--report_html', cwd=tmp_path, figures=True)
  assert more.returncode == 0, more.stderr
  assert more.stdout.endswith('\nReport: here/report.html\n')
  page = (tmp_path / 'here/report.html').read_text()
  assert '<title>digits: fesem(4), seed 0</title>' in page
  lines = (tmp_path / 'here/metrics.jsonl').read_text().splitlines()
  assert [json.loads(x)['round'] for x in lines] == [0, 1, 2, 3, 4]
  drawn = call('report', 'here', '--figures=plots', cwd=tmp_path, figures=True)
  assert drawn.returncode == 0, drawn.stderr
  assert len(list((tmp_path / 'plots').glob('*.png'))) == 6


@pytest.mark.slow
def test_compare_writes_tables_and_runs_only_what_is_missing(tmp_path):
  shared = [*LOGISTIC, '--clients_per_round=4', '--workdir=table']
  # A method that cannot run does not stop the others.
  some = '--algorithms=fed_avg,fed_cluster'
  first = call('compare', *shared, some, '--num_seeds=1', cwd=tmp_path, figures=True)
  assert first.returncode == 1
  assert 'clients_per_round' in first.stderr
  assert 'fed_cluster: ' in first.stderr
  folder = tmp_path / 'table'
  rows = list(csv.DictReader((folder / 'table.csv').open()))
  assert [r['method'] for r in rows] == ['fed_avg']
  assert (folder / 'plots/convergence.png').exists()

  done = folder / 'fed_avg/seed0/summary.json'
  before = done.stat().st_mtime_ns
  more = ['--oracle', '--report_html', '--reference=fed_avg', '--num_seeds=2']
  again = call(
    'compare',
    *shared,
    '--algorithms=fed_avg,slow=fed_avg(learning_rate=0.01)',
    *more,
    cwd=tmp_path,
  )
  assert again.returncode == 0, again.stderr
  assert done.stat().st_mtime_ns == before
  rows = list(csv.DictReader((folder / 'table.csv').open()))
  methods_run = ['fed_avg', 'slow', 'oracle']
  name = 'deployed.micro_accuracy_count'
  result = [(r['method'], float(r[name])) for r in rows]
  assert result == [(m, 2) for m in methods_run]
  # Of the oracle the clusters are right; every method's gap to it has its table.
  assert float(rows[2]['clusters.ari_mean']) == 1.0
  assert 'minus oracle' in again.stdout
  assert 'minus fed_avg' in again.stdout
  want = [
    json.loads((folder / f'slow/seed{s}/summary.json').read_text()) for s in (0, 1)
  ]
  mean = 50 * sum(w['finetuned']['macro_f1'] for w in want)
  assert float(rows[1]['finetuned.macro_f1_mean']) == pytest.approx(mean)
  files = {p.name for p in folder.glob('table.*')}
  assert files == {f'table.{kind}' for kind in ('md', 'csv', 'tex', 'json')}
  redo = ['--algorithms=fed_avg', '--redo=slow,oracle', '--num_seeds=2']
  assert call('compare', *shared, *redo, cwd=tmp_path).returncode == 0
  assert not (folder / 'slow').exists()
  rows = list(csv.DictReader((folder / 'table.csv').open()))
  assert [r['method'] for r in rows] == ['fed_avg']
  assert again.stdout.endswith('\nReport: table/report.html\n')
  text = (folder / 'report.html').read_text()
  assert 'fed_avg' in text


MISTAKES = [
  (['--num_devices=-1'], 'num_devices'),  # Devices are chosen once.
  (['--algorithm=fedavgg'], 'fedavgg'),
  (['--rounds=two'], '--rounds: invalid value'),
  (['--ditto_lambda=1'], 'METHOD(ditto_lambda=VALUE)'),
  (['--flagfile=dmo'], 'did you mean demo'),
  (['--num_client=3'], "Unknown command line flag 'num_client'"),
  (['--algorithm=fed_avg', '--num_clusters=2'], '--num_clusters: does not apply'),
  (['--dp_clip=1'], '--dp_clip: needs dp'),
  (['--partition=rotated(angles=4)'], '--partition: rotated'),
  (['--learning_rate=1e30'], 'finite'),
  (['fesem'], "'fesem': is not a flag"),
  (['--seed=-1'], '--seed: must be at least 0'),
]  # fmt: skip


def assert_one_sentence(done, message, folder):
  assert done.returncode == 1
  assert message in done.stderr
  assert 'Traceback' not in done.stderr
  assert not list(folder.rglob('summary.json'))
  if 'finite' not in message:
    assert not list(folder.iterdir())


@pytest.mark.parametrize(('arguments', 'message'), MISTAKES[1:])
def test_mistakes_are_one_sentence(arguments, message, tmp_path):
  done = call('run', *QUICK, *arguments, cwd=tmp_path)
  assert_one_sentence(done, message, tmp_path)


@pytest.mark.slow
def test_a_mistake_ends_the_process_with_exit_code_1(tmp_path):
  arguments, message = MISTAKES[0]
  assert_one_sentence(spawn('run', *QUICK, *arguments, cwd=tmp_path), message, tmp_path)
