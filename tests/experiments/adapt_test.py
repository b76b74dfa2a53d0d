"""New clients of finished runs: against what the runs themselves measured of them."""

import csv
import hashlib
import json
import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest
from absl import flags

from experiments import adapt, adapt_tables, build, new_clients
from experiments import flags as experiment_flags
from experiments import run as experiment
from experiments.adapt_measure import Settings, check
from experiments.build import load_data
from fesem_jax import data
from fesem_jax.analysis import joining_rules
from fesem_jax.data.corruption import corrupted
from fesem_jax.run.programs import Programs
from fesem_jax.run.resume import digest_of_data
from fesem_jax.utils.errors import Diverged, UserError
from tests.support import commands
from tests.support.commands import call

RULES = [*joining_rules.RULES, 'global model', 'alone']
# No client has 200 examples: all again, from the same programs.
SETTINGS = Settings(('all', '2', '200'), alone_epochs=1)
CHANGES = {
    # Clients of one size, so that both seeds run in the same programs.
    'dataset': 'synthetic_table', 'partition': 'natural', 'partition_groups': 2,
    'num_clients': 16, 'examples_per_client': 24, 'rounds': 2, 'local_epochs': 1,
    'model': 'logistic', 'unseen_fraction': 0.25, 'eval_every': 0,
}  # fmt: skip


def digests(folder):
  """Path of each file of a run -> its digest, without what adapt adds."""
  files = [p for p in folder.rglob('*') if p.is_file()]
  return {
    p.relative_to(folder): hashlib.sha256(p.read_bytes()).hexdigest()
    for p in files
    if p.relative_to(folder).parts[0] != 'adapt'
  }


@pytest.fixture(autouse=True, scope='module')
def without_figures():
  with commands.without_figures():
    yield


@pytest.fixture(scope='module')
def machine():
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()
  flags.FLAGS(['run'])
  return experiment_flags.machine()


@pytest.fixture(scope='module')
def finished(machine, tmp_path_factory):
  """Workdirs of two seeds of one run, and their digests."""
  folder, programs = tmp_path_factory.mktemp('runs'), Programs()
  config = experiment_flags.configuration('fesem', {'num_clusters': 2}) | CHANGES
  workdirs = [folder / f'seed{seed}' for seed in (0, 1)]
  for seed, workdir in enumerate(workdirs):
    experiment.run(config | {'seed': seed}, machine, workdir, programs=programs)
  return workdirs, [digests(workdir) for workdir in workdirs]


@pytest.fixture(scope='module')
def adapted(finished, machine, tmp_path_factory):
  """The rows of both runs, and the folder of the results."""
  out = tmp_path_factory.mktemp('out')
  return adapt.adapt(finished[0], out, SETTINGS, machine), out


def row_of(rows, seed, number, rule):
  wanted = seed, number, rule
  (row,) = [r for r in rows if (r['seed'], r['num_examples'], r['rule']) == wanted]
  return row


@pytest.fixture
def workdir(finished, tmp_path):
  """A copy of a run to be broken."""
  but = shutil.ignore_patterns('adapt')
  return shutil.copytree(finished[0][0], tmp_path / 'run', ignore=but)


def edit(workdir, **changes):
  path = workdir / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refuses(message, machine, workdirs, out=None, settings=SETTINGS, globals_=None):
  with pytest.raises(UserError, match=message) as caught:
    adapt.adapt(workdirs, out, settings, machine, globals_)
  assert '\n' not in str(caught.value)


@pytest.mark.nightly
def test_joining_by_all_losses_is_what_the_run_measured_of_unseen_clients(
  finished, adapted
):
  for seed, workdir in enumerate(finished[0]):
    summary = json.loads((workdir / 'summary.json').read_text())
    row = row_of(adapted[0], seed, 'all', 'loss')
    assert row['joined'] == pytest.approx(summary['unseen'])
    assert (row['as_loss'], row['clients'], row['with_fewer']) == (1.0, 4, 0)
    path = workdir / 'adapt' / 'fed_avg' / 'summary.json'
    row = row_of(adapted[0], seed, 'all', 'global model')
    assert row['joined'] == pytest.approx(json.loads(path.read_text())['unseen'])
    assert row['in_group'] is None


def test_every_run_number_and_rule_has_a_row(adapted):
  rows, out = adapted
  # Numbers by size, whatever order they were given in.
  want = [(s, n, r) for s in (0, 1) for n in (2, 200, 'all') for r in RULES]
  assert [(r['seed'], r['num_examples'], r['rule']) for r in rows] == want
  for row in rows:
    assert 0 <= row['joined']['micro_accuracy'] <= 1
    if row['rule'] in joining_rules.RULES:
      assert 4 * row['in_group'] in range(5)
  assert [r['with_fewer'] for r in rows[::5]] == [0, 4, 0] * 2
  tuned = row_of(rows, 0, 2, 'loss')
  assert tuned['finetuned'] != tuned['joined']
  written = json.loads((out / 'adapt.json').read_text())
  assert written['rows'] == rows
  assert written['settings']['num_examples'] == ['all', '2', '200']
  lines = list(csv.DictReader((out / 'adapt.csv').read_text().splitlines()))
  assert len(lines) == len(rows)
  assert lines[0]['rule'] == 'weights'
  assert float(lines[0]['joined_micro_f1']) == rows[0]['joined']['micro_f1']
  names = {p.name for p in out.iterdir()} - {'.lock'}
  plot = {'accuracy_by_examples.png', 'accuracy_by_examples.svg'}
  assert names == {'adapt.json', 'adapt.csv', 'table.md'} | plot


def test_the_run_itself_is_not_touched(finished, adapted):
  assert [digests(workdir) for workdir in finished[0]] == finished[1]


def test_shares_go_by_the_groups_of_the_run(finished, adapted, machine):
  clients = new_clients.load(finished[0][0], machine['data_dir'])
  train, _ = load_data(clients.config)
  group = dict(zip(train.info.names.tolist(), train.info.clusters, strict=True))
  held = clients.run.assignment
  assert not held.keys() & set(clients.train.info.names.tolist())
  losses = []
  for k in range(2):  # Every center has clients here.
    center_losses = []
    for i in range(4):
      x, y = clients.train.client(i)
      p = clients.run.predict(x, cluster=k, probabilities=True)
      center_losses.append(-np.log(p[np.arange(len(y)), y]).mean())
    losses.append(center_losses)
  most = [
    np.bincount([group[n] for n, c in held.items() if c == k]).argmax() for k in (0, 1)
  ]
  np.testing.assert_array_equal(clients.groups, most)
  right = [
    most[k] == group[name]
    for name, k in zip(clients.train.info.names, np.argmin(losses, axis=0), strict=True)
  ]
  assert row_of(adapted[0], 0, 'all', 'loss')['in_group'] == np.mean(right)


def test_fed_avg_is_trained_once_and_may_be_named(finished, adapted, machine, tmp_path):
  (workdir, _), settings = finished[0], SETTINGS._replace(num_examples=('2',))
  fed_avg = workdir / 'adapt' / 'fed_avg'
  before = digests(fed_avg)
  again = adapt.adapt([workdir], None, settings, machine)
  assert again == adapted[0][: len(RULES)]
  assert digests(fed_avg) == before
  assert (workdir / 'adapt' / 'table.md').is_file()
  out = tmp_path / 'named'
  named = adapt.adapt([workdir], out, settings, machine, [fed_avg])
  assert named == again
  assert digests(workdir) == finished[1][0]


@pytest.mark.parametrize(
  ('method', 'given', 'wanted'),
  [
    ('fesem', {}, ('by_examples', 'mean')),  # FeSEM's own default is uniform.
    ('fesem', {'aggregation': 'median'}, ('by_examples', 'median')),
    ('pacfl', {'weighting': 'uniform'}, ('uniform', 'mean')),
    ('fesem', {'dp': 'server'}, ('uniform', 'mean')),
  ],
)
def test_fed_avg_has_the_options_that_the_run_was_given(
  machine, monkeypatch, tmp_path, method, given, wanted
):
  config = experiment_flags.configuration(method, {}) | CHANGES | given
  clients = mock.Mock(config=config, run=mock.Mock(workdir=tmp_path))
  run = mock.Mock(side_effect=Diverged('not run'))
  monkeypatch.setattr(experiment, 'run', run)
  with pytest.raises(Diverged, match='not run'):
    adapt._fed_avg(clients, machine, Programs())
  trained = run.call_args.args[0]
  assert (trained['weighting'], trained['aggregation']) == wanted


def test_mistakes_are_one_sentence_and_leave_nothing(
  workdir, machine, finished, adapted, tmp_path
):
  seeds, out = finished[0], tmp_path / 'out'
  fed_avg = [folder / 'adapt' / 'fed_avg' for folder in seeds]
  refuses('workdir', machine, [])
  refuses('output', machine, seeds)
  refuses('seed 0', machine, [workdir, seeds[0]], out)
  refuses('no centers', machine, [fed_avg[0]])
  refuses('global_run', machine, seeds, out, globals_=[workdir])
  refuses('global_run', machine, [workdir], globals_=[workdir])
  refuses('global_run', machine, [workdir], globals_=[fed_avg[1]])
  edit(workdir, data_digest='0')
  refuses('data_dir', machine, [workdir])
  edit(workdir, unseen_fraction=0.0)
  refuses('all clients took part', machine, [workdir])
  (workdir / 'summary.json').unlink()
  refuses('not finished', machine, [workdir])
  assert not out.exists()
  assert not (workdir / 'adapt').exists()


def test_the_data_of_a_run_have_its_bad_clients(workdir):
  config = json.loads((workdir / 'config.json').read_text())
  config |= {'corrupt': 'label_flip', 'corrupt_fraction': 0.5}
  fraction, seed = config['unseen_fraction'], config['seed']
  (train, test), unseen = data.hold_out_clients(*load_data(config), fraction, seed)
  bad = corrupted(train, 'label_flip', 0.5, seed)
  config['data_digest'] = digest_of_data(bad, test, *unseen)
  splits = build.data_of_run(workdir, config, '')
  np.testing.assert_array_equal(splits[0].corruption.bad, bad.corruption.bad)


def test_runs_of_two_configurations_are_told_by_their_flags(finished, machine):
  clients = [new_clients.load(folder, machine['data_dir']) for folder in finished[0]]
  new_clients.check_one_configuration(clients)
  clients[1].run.config['learning_rate'] = 0.2
  with pytest.raises(UserError, match='learning_rate'):
    new_clients.check_one_configuration(clients)


def test_seeds_that_stopped_after_other_rounds_are_of_one_configuration(
  finished, machine
):
  clients = [new_clients.load(folder, machine['data_dir']) for folder in finished[0]]
  clients[1].run.summary['rounds'] += 1
  with pytest.raises(UserError, match='rounds'):
    new_clients.check_one_configuration(clients)
  for each in clients:
    each.run.config['stop_after'] = 2
  new_clients.check_one_configuration(clients)


@pytest.mark.parametrize('number', ['0', '-1', '1' * 10, 'many'])
def test_numbers_of_examples_that_make_no_sense(number):
  with pytest.raises(UserError, match='num_examples'):
    check(Settings(('5', number)))


def made(seed, rule, accuracy, **changes):
  figures = dict.fromkeys(('micro_accuracy', 'macro_accuracy'), accuracy)
  return {
      'seed': seed, 'num_examples': 5, 'rule': rule, 'joined': figures,
      'finetuned': figures, 'in_group': None, 'as_loss': None, 'clients': 4,
      'with_fewer': 0, 'training_failed': 0, 'finetuning_failed': 0,
  } | changes  # fmt: skip


def test_tables_hold_mean_and_deviation_over_runs():
  rows = [
    made(0, 'loss', 0.90, as_loss=1.0, with_fewer=1),
    made(0, 'alone', 0.5, training_failed=2),
    made(1, 'loss', 0.94, as_loss=0.5),
    made(1, 'alone', 0.5),
  ]
  table = adapt_tables.over_runs(rows)
  text = adapt_tables.table_of(table).as_markdown()
  lines = text.splitlines()
  assert lines[0].count('|') == lines[1].count('|') == lines[2].count('|')
  assert 'in its group' not in text  # No run knows groups.
  assert lines[2].startswith('| 5 | loss | 92.0 ± 2.8 | ')
  assert lines[2].endswith('| 75.0 ± 35.4 |')
  assert lines[3].endswith('| 50.0 ± 0.0 |  |')
  assert 'Mean and sample standard deviation over 2 run(s)' in text
  alone = str(adapt_tables.table_of(adapt_tables.over_runs(rows[:2]))).splitlines()
  assert '90.0 ' in alone[1]
  assert '±' not in alone[1]


@pytest.mark.slow
def test_the_command_ends_as_a_user_sees_it(finished, adapted):
  workdir = pathlib.Path(finished[0][0])
  done = call('adapt', workdir, '--num_examples=3', '--output=new', cwd=workdir.parent)
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert [line.split()[:2] for line in lines[2:5]] == [['3', r] for r in RULES[:3]]
  assert (workdir.parent / 'new' / 'table.md').is_file()
  wrong = call('adapt', '--num_examples=0', cwd=workdir.parent)
  assert wrong.returncode == 1
  assert wrong.stderr.splitlines()[-1].startswith('error: --num_examples: ')
