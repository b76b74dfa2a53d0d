"""Average ranks over data sets, beside the numbers of Demšar (2006)."""

import json
import pathlib

import numpy as np
import pytest

from experiments import figures
from fesem_jax import plots
from fesem_jax.plots import ranks
from fesem_jax.utils.errors import UserError


def test_equal_scores_share_their_ranks():
  scores = np.array([[0.9, 0.8, 0.8], [0.5, 0.7, 0.6], [0.1, 0.1, 0.1]])
  np.testing.assert_allclose(ranks.average_ranks(scores), [6 / 3, 5.5 / 3, 6.5 / 3])


@pytest.mark.parametrize(
  ('methods', 'datasets', 'alpha', 'wanted'),
  # Section 3.2.4 (four algorithms, 14 data sets) and Table 5 (a), which has q.
  [
    (4, 14, 0.05, 2.569 * np.sqrt(4 * 5 / (6 * 14))),
    (4, 14, 0.10, 2.291 * np.sqrt(4 * 5 / (6 * 14))),
    (10, 30, 0.05, 3.164 * np.sqrt(10 * 11 / (6 * 30))),
  ],
)
def test_the_critical_difference_is_that_of_the_paper(methods, datasets, alpha, wanted):
  found = ranks.critical_difference_of(methods, datasets, alpha)
  assert found == pytest.approx(wanted, rel=5e-4)


def test_largest_groups_within_the_difference_are_joined():
  # Figure 1 (a) of the paper, but for the names.
  assert ranks.not_different([1.964, 2.0, 2.893, 3.143], 1.25) == [(0, 3)]
  assert ranks.not_different([1.0, 1.5, 2.4, 4.0], 1.0) == [(0, 1), (1, 2)]
  assert ranks.not_different([1.0, 3.0], 1.0) == []


def _comparison(folder, **scores):
  folder.mkdir()
  rows = [
    {'method': m, 'task': 'classification', 'deployed_micro_accuracy': [x, 1.0]}
    for m, x in scores.items()
  ]
  (folder / 'table.json').write_text(json.dumps({'methods': rows}))
  return str(folder)


def test_ranks_of_comparisons_are_drawn_from_the_command_line(tmp_path, capsys):
  workdirs = [
    _comparison(tmp_path / 'a', fed_avg=80.0, fesem=90.0, ditto=85.0),
    _comparison(tmp_path / 'b', fesem=70.0, fed_avg=60.0, moon=50.0, ditto=65.0),
  ]
  output = tmp_path / 'ranks.png'
  figures.draw_ranks(workdirs, output)
  assert output.exists()
  said = capsys.readouterr().out
  assert 'left out: moon.' in said
  scores = {w: {'fed_avg': 1.0, 'fesem': 3.0, 'ditto': 2.0} for w in 'ab'}
  axis = plots.critical_difference(scores).axes[0]
  labels = [label.get_text() for label in axis.get_yticklabels()]
  assert labels == ['FeSEM', 'Ditto', 'FedAvg']
  assert axis.lines[0].get_xdata().tolist() == [1, 2, 3]


def test_equal_methods_have_a_p_value_of_one():
  scores = {name: dict.fromkeys('abc', 0.5) for name in ('x', 'y', 'z')}
  title = plots.critical_difference(scores).axes[0].get_title()
  assert title.endswith('Friedman p = 1')


def test_ranks_are_of_the_honest_clients(tmp_path, monkeypatch):
  workdirs = [_comparison(tmp_path / n, a=80.0, b=90.0) for n in 'xy']
  for name in workdirs:
    path = pathlib.Path(name) / 'table.json'
    held = json.loads(path.read_text())
    held['methods'][0]['honest_deployed_micro_accuracy'] = [95.0, 1.0]
    path.write_text(json.dumps(held))
  drawn = []
  monkeypatch.setattr(plots, 'critical_difference', drawn.append)
  monkeypatch.setattr(plots, 'save', lambda *_: [])
  figures.draw_ranks(workdirs, tmp_path / 'ranks.png')
  assert [each['a'] for each in drawn[0].values()] == [95, 95]


def test_the_oracle_is_not_ranked_nor_are_figures_of_other_rounds(
  tmp_path, monkeypatch
):
  workdirs = [_comparison(tmp_path / n, a=80.0, b=90.0, told=99.0) for n in 'xy']
  for name in workdirs:
    path = pathlib.Path(name) / 'table.json'
    held = json.loads(path.read_text()) | {'gaps': {'reference': 'told'}}
    held['methods'][0]['diverged'] = 1
    path.write_text(json.dumps(held))
  drawn = []
  monkeypatch.setattr(plots, 'critical_difference', drawn.append)
  monkeypatch.setattr(plots, 'save', lambda *_: [])
  figures.draw_ranks(workdirs, tmp_path / 'ranks.png')
  assert [list(each) for each in drawn[0].values()] == [['a', 'b']] * 2
  path.write_text(json.dumps(held | {'report': 'best'}))
  with pytest.raises(UserError, match='ranks'):
    figures.draw_ranks(workdirs, tmp_path / 'ranks.png')


def test_what_cannot_be_ranked_is_refused(tmp_path):
  one = _comparison(tmp_path / 'a', fed_avg=80.0, fesem=90.0)
  with pytest.raises(UserError, match='scores'):
    figures.draw_ranks([one], tmp_path / 'x.png')
  with pytest.raises(UserError, match='ranks'):
    figures.draw_ranks([one, str(tmp_path)], tmp_path / 'x.png')
  with pytest.raises(UserError, match='scores'):
    plots.critical_difference({'a': {'x': 1, 'y': 2}, 'b': {'x': 1, 'z': 2}})
