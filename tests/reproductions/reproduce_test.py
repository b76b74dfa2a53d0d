"""fesem-reproduce: recipes, the ledger, verdicts, the page."""

import numpy as np
import pytest
from scipy import stats

from reproductions import ledger, pictures, published_curves, recipes
from reproductions.recipes import Cell
from reproductions.reproduce import SMALL_TOLERANCE, is_stale
from tests.support import commands

_LEDGER = commands.ROOT / 'benchmarks/results/papers'
_FIGURES = commands.ROOT / 'docs/figures'
_ON_REAL_DATA = {
  'cfl_gp', 'clove', 'fesem', 'fesem_elsewhere', 'flower_label_skew', 'flute', 'flux',
  'ifca', 'ifca_cifar', 'mc_mahan',
}  # fmt: skip
_BY_DAY = {'fed_prox', 'mc_mahan'}  # One paper of each kind of data.
_OWN = """
title = "T"
reference = "R"
setting = "S"
facts = "F"
flags = ["--dataset=digits", "--num_clients=8", "--rounds=2", "--hidden=8"]
[[cells]]
name = "fed_avg"
row = "FedAvg"
flags = ["--algorithm=fed_avg"]
published = 90.0
rates = [0.01, 0.2]
seeds = 2
"""


# Student's quantile of two degrees of freedom, 4.30, x 0.2 x sqrt(1 + 1/3): 0.99.
_SPREAD = {'published': 80.0, 'deviation': 0.2, 'published_seeds': 3}


def test_the_ledger_holds_the_values_that_its_recipes_publish():
  for path in _LEDGER.rglob('*.json'):
    recipe = recipes.read(path.parent.name)
    cell = recipe.cell(path.stem)
    entry = ledger.read(_LEDGER, path.parent.name, path.stem)
    assert entry['published'] == cell.published
    assert entry['measure'] == cell.measure
    assert len(entry['values']) == len(entry['seeds']) == cell.seeds
    assert entry['commit']
    assert not is_stale(recipe.source_of(cell)._replace(seeds=cell.seeds), entry)


@pytest.mark.parametrize(
  'name',
  [pytest.param(name, marks=[pytest.mark.nightly] * (name not in _BY_DAY))
   for name in sorted(recipes.names())],
)  # fmt: skip
def test_a_small_cell_comes_out_as_recorded(name, tmp_path, request):
  data = request.getfixturevalue('real_data') if name in _ON_REAL_DATA else None
  if name == 'ifca_cifar' and not (data / 'cifar-10-batches-bin').is_dir():
    pytest.skip('the folder of real data has no CIFAR-10 in binary files')
  recipe, workdir = recipes.read(name), f'--workdir={tmp_path}'
  done = commands.call('run', *recipe.small_flags(), workdir, cwd=commands.ROOT)
  assert done.returncode == 0, done.stderr
  assert abs(ledger.accuracy(tmp_path) - recipe.small_value) <= SMALL_TOLERANCE


@pytest.mark.nightly
def test_a_recipe_of_ones_own_runs_and_resumes(tmp_path):
  path = tmp_path / 'own.toml'
  path.write_text(_OWN)
  kept = tmp_path / 'kept'
  flags = [f'--paper={path}', f'--workdir={tmp_path / "runs"}', f'--ledger={kept}']
  done = commands.spawn('reproductions.reproduce', *flags, cwd=commands.ROOT)
  assert done.returncode == 0, done.stderr
  entry = ledger.read(kept, 'own', 'fed_avg')
  assert set(entry['rates']) == {'0.01', '0.2'}
  best = max(entry['rates'], key=lambda rate: entry['rates'][rate])
  assert f'--learning_rate={best}' in entry['command']
  assert entry['values'][0] == entry['rates'][best]
  assert entry['processor_hours'] > 0
  again = commands.spawn('reproductions.reproduce', *flags, cwd=commands.ROOT)
  first, last = again.stdout.splitlines()
  assert first.startswith('own/fed_avg: not run now, the ledger has it (commit ')
  assert '): published 90.00, here' in first
  assert last.startswith('own: 1 of 1 cells were not run')
  rerun = commands.spawn(
    'reproductions.reproduce', *flags, '--rerun', cwd=commands.ROOT
  )
  assert 'own/fed_avg: the ledger had ' in rerun.stdout
  assert not (tmp_path / 'runs/rerun/own').exists()
  assert ledger.read(kept, 'own', 'fed_avg')['values'] == entry['values']
  path.write_text(_OWN.replace('--rounds=2', '--rounds=3'))
  other = commands.spawn('reproductions.reproduce', *flags, cwd=commands.ROOT)
  assert 'fed_avg.json' in other.stderr


def test_the_interval_is_that_of_scipy():
  ours, theirs = [80.0, 80.4, 80.9], [79.5, 80.0, 80.1, 81.2]
  cell = Cell('c', 'c', published=80.2, deviation=float(np.std(theirs, ddof=1)),
              published_seeds=4)  # fmt: skip
  welch = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
  half = ledger.half_interval(cell, ours)
  np.testing.assert_allclose(half, (welch.high - welch.low) / 2, rtol=1e-12)
  about = ledger.half_interval(cell._replace(rounding=5.0), ours)
  np.testing.assert_allclose(about, half + 5.0)


def test_pictures_are_those_of_the_ledger():
  for name in recipes.names():
    for stem, shown in pictures.of(recipes.read(name), _LEDGER).items():
      picture = _FIGURES / f'{stem}.png'
      assert published_curves.shown(picture) == published_curves.digest(shown), stem


def test_tables_have_students_intervals_of_each_side():
  cell = Cell('a', 'A', **_SPREAD)
  half = stats.t.ppf(0.975, 2) * 0.2 / np.sqrt(3)
  np.testing.assert_allclose(ledger.half_published(cell), half)
  assert ledger.half_published(cell._replace(published_seeds=1)) is None
  about = cell._replace(deviation=None, rounding=0.5)
  assert ledger.half_published(about) == 0.5
  values = [81.0, 82.0, 84.0, 80.0]
  low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
  np.testing.assert_allclose(ledger.half_here(values), (high - low) / 2)
  assert ledger.half_here([81.0]) is None
  assert ledger.half_here([81.0, None]) is None
  row = pictures.Value('A', 'deployed', 80.0, half, 81.0, 0.5)
  other = pictures.Value('B', 'rounds', None, None, 12.0, None)
  accuracy, rounds = published_curves.values_drawn([row, row, other]).axes
  assert len(accuracy.containers) == 4
  bars = [c.lines[2][0].get_segments()[0][:, 0] for c in accuracy.containers[:2]]
  np.testing.assert_allclose(bars, [[80 - half, 80 + half], [80.5, 81.5]])
  assert len(rounds.containers) == 1
  assert rounds.get_xlabel() == 'Rounds to the target'


@pytest.mark.parametrize(
  ('cell', 'values', 'told'),
  [({'published': 80.0}, None, 'not run'), ({}, [80.0], 'no published number'),
   ({'published': 80.0}, [81.0], 'published spread unknown'),
   ({'published': 80.0, 'deviation': 0.3}, [81.0], 'published spread unknown'),
   (_SPREAD, [80.9], 'no difference detected at this precision'),
   (_SPREAD, [81.1], 'different'),
   (_SPREAD, [79.0, 81.1, 81.2], 'no difference detected at this precision'),
   (_SPREAD, [81.2, 81.3, 81.4], 'different'),
   ({'published': 80.0, 'comparable': 'other data'}, [80.0], 'not comparable'),
   ({'published': 80, 'measure': 'rounds'}, [None], 'target not reached')],
)  # fmt: skip
def test_verdicts(cell, values, told):
  entry = None if values is None else {'values': values}
  assert ledger.verdict(Cell('c', 'c', **cell), entry) == told
