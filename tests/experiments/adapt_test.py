"""New clients of finished runs: against what the runs themselves measured of them."""

import hashlib
import json
import pathlib
import shutil

import numpy as np
import pytest
from absl import flags

import fesem_jax as fj
from experiments import adapt, build, specs
from experiments import flags as experiment_flags
from experiments import run as experiment
from experiments.build import load_data
from fesem_jax import data
from fesem_jax.analysis.joining import RULES
from fesem_jax.data import attacks
from fesem_jax.run.configuration import digest_of_data
from fesem_jax.utils.errors import UserError
from tests.support.commands import call

EVERY = [*RULES, 'alone']
# No client has 200 examples: all again, from the same programs.
NUMBERS = ('all', '2', '200')
CHANGES = {
    # Clients of one size, so that both seeds run in the same programs.
    'dataset': 'synthetic_mixture(groups=2)', 'partition': 'natural',
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


@pytest.fixture(scope='module')
def machine():
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()
  flags.FLAGS(['run'])
  return experiment_flags.machine()


@pytest.fixture(scope='module')
def finished(machine, tmp_path_factory):
  """Workdirs of two seeds of one run, and their digests."""
  folder = tmp_path_factory.mktemp('runs')
  config = experiment_flags.configuration('fesem', {'num_clusters': 2}) | CHANGES
  workdirs = [folder / f'seed{seed}' for seed in (0, 1)]
  for seed, workdir in enumerate(workdirs):
    specs.run(config | {'seed': seed}, machine, workdir)
  return workdirs, [digests(workdir) for workdir in workdirs]


@pytest.fixture(scope='module')
def adapted(finished, machine, tmp_path_factory):
  """The rows of both runs, and the folder of the results."""
  out = tmp_path_factory.mktemp('out')
  return adapt.adapt(finished[0], out, NUMBERS, machine), out


def row_of(rows, seed, number, rule):
  expected = seed, number, rule
  (row,) = [r for r in rows if (r['seed'], r['num_examples'], r['rule']) == expected]
  return row


@pytest.fixture
def workdir(finished, tmp_path):
  """A copy of a run to be broken."""
  but = shutil.ignore_patterns('adapt')
  return shutil.copytree(finished[0][0], tmp_path / 'run', ignore=but)


def edit(workdir, **changes):
  path = workdir / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refuses(subject, machine, workdirs, out=None, numbers=NUMBERS):
  with pytest.raises(UserError, match=subject):
    adapt.adapt(workdirs, out, numbers, machine)


@pytest.mark.nightly
def test_joining_by_all_losses_is_what_the_run_measured_of_unseen_clients(
  finished, adapted
):
  for seed, workdir in enumerate(finished[0]):
    summary = json.loads((workdir / 'summary.json').read_text())
    row = row_of(adapted[0], seed, 'all', 'loss')
    assert row['joined'] == pytest.approx(summary['unseen'])
    assert row['clients'] == 4


def test_every_run_number_and_rule_has_a_row(adapted):
  rows, out = adapted
  # Numbers by size, whatever order they were given in.
  want = [(s, n, r) for s in (0, 1) for n in (2, 200, 'all') for r in EVERY]
  assert [(r['seed'], r['num_examples'], r['rule']) for r in rows] == want
  for row in rows:
    assert 0 <= row['joined']['micro_accuracy'] <= 1
    if row['rule'] in RULES:
      assert 4 * row['in_group'] in range(5)
  tuned = row_of(rows, 0, 2, 'loss')
  assert tuned['finetuned'] != tuned['joined']
  assert json.loads((out / 'adapt.json').read_text())['rows'] == rows
  assert {p.name for p in out.iterdir()} == {'adapt.json', 'table.md'}


def test_the_run_itself_is_not_touched(finished, adapted):
  assert [digests(workdir) for workdir in finished[0]] == finished[1]


def test_shares_go_by_the_groups_of_the_run(finished, adapted, machine):
  run = fj.load_run(finished[0][0])
  train, _, new, _ = build.data_of_run(run.workdir, run.config, machine['data_dir'])
  group = dict(zip(train.info.names.tolist(), train.info.clusters, strict=True))
  assert not set(run.clients.client) & set(new.info.names.tolist())
  losses = []
  for k in range(2):  # Every center has clients here.
    center_losses = []
    for i in range(4):
      x, y = new.client(i)
      p = run.predict(x, cluster=k, probabilities=True)
      center_losses.append(-np.log(p[np.arange(len(y)), y]).mean())
    losses.append(center_losses)
  placed = run.clients[['client', 'cluster']].to_numpy()
  most = [np.bincount([group[n] for n, c in placed if c == k]).argmax() for k in (0, 1)]
  right = np.array(most)[np.argmin(losses, axis=0)] == new.info.clusters
  assert row_of(adapted[0], 0, 'all', 'loss')['in_group'] == np.mean(right)
  # The library joins the same clusters, and needs training for the other rules.
  np.testing.assert_array_equal(fj.join(run, new), np.argmin(losses, axis=0))
  with pytest.raises(UserError, match='local'):
    fj.join(run, new, 'weights')
  with pytest.raises(UserError, match='rule'):
    fj.join(run, new, 'nearest')


def test_new_clients_get_the_global_model_of_fed_avg(machine, tmp_path):
  config = experiment_flags.configuration('fed_avg', {}) | CHANGES | {'seed': 0}
  specs.run(config, machine, tmp_path)
  rows = adapt.adapt([tmp_path], None, ('all',), machine)
  assert [row['rule'] for row in rows] == ['global model', 'alone']
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert rows[0]['joined'] == pytest.approx(summary['unseen'])
  assert rows[0]['in_group'] is None
  assert (tmp_path / 'adapt' / 'table.md').is_file()


def test_mistakes_leave_nothing(workdir, machine, finished, adapted, tmp_path):
  seeds, out = finished[0], tmp_path / 'out'
  refuses('workdir', machine, [])
  refuses('output', machine, seeds)
  refuses('num_examples', machine, [workdir], numbers=('5', '-1'))
  edit(workdir, learning_rate=0.2)
  refuses('workdir', machine, [workdir, seeds[1]], out)
  edit(workdir, data_digest='0')
  refuses('data_dir', machine, [workdir])
  edit(workdir, unseen_fraction=0.0)
  refuses('all clients took part', machine, [workdir])
  assert not out.exists()
  assert not (workdir / 'adapt').exists()


def test_the_data_of_a_run_have_its_bad_clients(workdir):
  config = json.loads((workdir / 'config.json').read_text())
  config |= {'attack': 'label_flip', 'attack_fraction': 0.5}
  fraction, seed = config['unseen_fraction'], config['seed']
  (train, test), unseen = data.hold_out_clients(*load_data(config), fraction, seed)
  bad = attacks.apply(train, 'label_flip', 0.5, seed)
  config['data_digest'] = digest_of_data(bad, test, *unseen)
  splits = build.data_of_run(workdir, config, '')
  np.testing.assert_array_equal(splits[0].attack.bad, bad.attack.bad)


def made(seed, rule, accuracy, **changes):
  scores = dict.fromkeys(('micro_accuracy', 'macro_accuracy'), accuracy)
  row = {'seed': seed, 'num_examples': 5, 'rule': rule, 'in_group': None}
  return row | {'joined': scores, 'finetuned': scores} | changes


def test_tables_hold_mean_and_deviation_over_runs():
  rows = [
    made(0, 'loss', 0.90, in_group=1.0),
    made(0, 'alone', 0.5),
    made(1, 'loss', 0.94, in_group=0.5),
    made(1, 'alone', 0.5),
  ]
  cells, note = adapt.table_of(rows)
  assert cells.to_numpy().tolist() == [
    ['5', 'loss', '92.0 ± 2.8', '92.0 ± 2.8', '75.0 ± 35.4'],
    ['5', 'alone', '50.0 ± 0.0', '50.0 ± 0.0', ''],
  ]
  assert '2 runs' in note
  assert '±' not in adapt.table_of(rows[:2])[0].to_string()


@pytest.mark.slow
def test_the_command_ends_as_a_user_sees_it(finished, adapted):
  workdir = pathlib.Path(finished[0][0])
  done = call('adapt', workdir, '--num_examples=3', '--output=new', cwd=workdir.parent)
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  rows = [row[:2] for line in lines if (row := line.split())[:1] == ['3']]
  assert rows[: len(RULES)] == [['3', rule] for rule in RULES]
  assert (workdir.parent / 'new' / 'table.md').is_file()
