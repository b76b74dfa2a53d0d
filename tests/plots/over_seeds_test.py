"""Figures of methods over seeds."""

import json

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image
from scipy import stats

from fesem_jax import plots
from fesem_jax.plots import style
from fesem_jax.utils.errors import UserError
from tests.support.plotted import write_run as write_hand_made
from tests.support.reported import (
  table_of,
  value_of,
  write_comparison,
  write_run,
)

SEEDS = (0, 1, 2)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  folder = write_comparison(tmp_path_factory.mktemp('comparison'), SEEDS)
  return {
    label: [plots.PlottedRun(folder / label / f'seed{s}', label) for s in SEEDS]
    for label in ('fed_avg', 'fesem(2)')
  }


def test_curves_are_means_with_students_interval(runs):
  figure = plots.curves_over_seeds(runs)
  deployed, tuned = figure.axes
  assert deployed.get_ylim() == tuned.get_ylim()
  line = deployed.lines[0]
  each = 100 * np.array([[value_of(s, r, -0.1) for r in (2, 4)] for s in SEEDS])
  np.testing.assert_allclose(line.get_xdata(), [2, 4])
  np.testing.assert_allclose(line.get_ydata(), each.mean(axis=0))
  low, high = stats.t.interval(0.95, 2, each.mean(axis=0), stats.sem(each))
  edges = deployed.collections[0].get_paths()[0].vertices[:, 1]
  np.testing.assert_allclose((edges.min(), edges.max()), (low[0], high[1]))
  assert [t.get_text() for t in figure.legends[0].get_texts()] == ['FedAvg', 'FeSEM(2)']
  wide = plots.curves_over_seeds(runs, spread='deviation').axes[0].collections[0]
  edges = wide.get_paths()[0].vertices[:, 1]
  np.testing.assert_allclose(edges.min(), (each.mean(axis=0) - each.std(0, ddof=1))[0])
  # The mean, and a line for each seed of both methods.
  assert len(plots.curves_over_seeds(runs, spread='all').axes[0].lines) == 8


def test_curves_are_of_the_honest_clients_and_say_so(tmp_path):
  folder = write_run(tmp_path / 'run')
  records = [
    json.loads(t) for t in (folder / 'metrics.jsonl').read_text().split('\n') if t
  ]
  for record in records:
    if 'deployed' in record:
      record['honest'] = {k: {'micro_accuracy': 0.9} for k in ('deployed', 'finetuned')}
  text = ''.join(json.dumps(record) + '\n' for record in records)
  (folder / 'metrics.jsonl').write_text(text)
  run = plots.PlottedRun(folder, 'a')
  figure = plots.curves_over_seeds({'a': [run]})
  np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), 90)
  assert 'toy, honest clients, one seed' in figure.get_suptitle()
  figure = plots.convergence([run])
  np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), 90)
  assert figure.axes[0].get_title() == 'Deployed micro accuracy (%), honest clients'


def test_methods_of_fewer_seeds_say_so(runs):
  fewer = {'fed_avg': runs['fed_avg'][:2], 'fesem(2)': runs['fesem(2)']}
  names = ['FedAvg (2 of 3 seeds)', 'FeSEM(2)']
  texts = plots.curves_over_seeds(fewer).legends[0].get_texts()
  assert [t.get_text() for t in texts] == names
  (axis,) = plots.client_distributions(fewer).axes
  assert [t.get_text() for t in axis.get_yticklabels()] == names


def test_curves_that_end_with_their_first_seed_say_so(runs):
  early = plots.PlottedRun(runs['fed_avg'][0].workdir, 'fed_avg')
  early.history = [record for record in early.history if record['round'] <= 2]
  figure = plots.curves_over_seeds(runs | {'fed_avg': [early, *runs['fed_avg'][1:]]})
  assert figure.axes[0].lines[0].get_xdata().tolist() == [2]
  said = [text.get_text() for text in figure.legends[0].get_texts()]
  assert said == ['FedAvg\n(until a seed ended, round 2)', 'FeSEM(2)']


def test_what_no_run_says_is_refused(runs):
  with pytest.raises(UserError, match='over'):
    plots.curves_over_seeds(runs, over='epsilon')
  with pytest.raises(UserError, match='spread'):
    plots.curves_over_seeds(runs, spread='none')


def test_differences_are_filled_where_p_is_small():
  rows = [
    {'method': 'a$b', 'mean': 2.0, 'low': 1.0, 'high': 3.0, 'p': 0.01, 'pairs': 3},
    {'method': 'c', 'mean': -1.0, 'low': -3.0, 'high': 1.0, 'p': 0.2, 'pairs': 3},
    {'method': 'd', 'mean': -1.0, 'low': None, 'high': None, 'p': None, 'pairs': 1},
  ]
  found = {'reference': 'fed_avg', 'of': '', 'task': 'classification', 'deployed': rows}
  (axis,) = plots.forest(found).axes
  _, bar, first, _, second, third = axis.lines
  np.testing.assert_allclose(bar.get_xdata(), [1, 3])
  fills = [point.get_markerfacecolor() for point in (first, second, third)]
  assert fills[0] == first.get_color()
  assert fills[1:] == ['white', 'white']


def test_infinite_differences_are_named():
  row = {'low': None, 'high': None, 'p': None, 'pairs': 1}
  means = {'ditto': 2.0, 'apfl': np.inf}
  rows = [row | {'method': label, 'mean': mean} for label, mean in means.items()]
  found = {'reference': 'fed_avg', 'of': '', 'task': 'regression', 'deployed': rows}
  labels = plots.forest(found).axes[0].get_yticklabels()
  assert [text.get_text() for text in labels] == ['Ditto', 'APFL\n(infinite)']


def test_differences_of_one_seed_are_said_to_have_no_interval():
  row = {'method': 'fesem(4)', 'mean': 2.0, 'low': None, 'high': None, 'p': None}
  row['pairs'] = 1
  found = {'reference': 'fed_avg', 'of': '', 'task': 'classification'}
  found['deployed'] = [row]
  said = plots.forest(found).get_suptitle()
  assert said == 'Deployed models minus FedAvg\none seed, of which there is no interval'
  alike = found | {'deployed': [row | {'pairs': 2}]}
  assert 'all seeds differ by the same amount' in plots.forest(alike).get_suptitle()
  said = plots.forest(found | {'report': 'mean10'}).get_suptitle()
  assert 'models, mean of the last ten evaluations, minus FedAvg' in said


def test_the_worst_tenth_of_clients_is_marked(runs):
  (axis,) = plots.client_distributions(runs).axes
  table = table_of([f'c{i:02d}' for i in range(12)])
  known = np.sort(np.concatenate([table.deployed_accuracy[2:] - 0.1] * 3))
  np.testing.assert_allclose(axis.lines[0].get_xdata(), [100 * known[:3].mean()])


def test_the_worst_tenth_of_losses_may_be_negative(tmp_path, runs):
  run = plots.PlottedRun(runs['fed_avg'][0].workdir)
  run.history = [{'round': 1, 'deployed': {'micro_loss': -2.0}}]
  run.client_figures = lambda name: -np.arange(1.0, 11)
  (axis,) = plots.client_distributions({'own': [run]}).axes
  np.testing.assert_allclose(axis.lines[0].get_xdata(), [-1])


def test_infinite_losses_are_counted_beside_the_method(runs):
  run = plots.PlottedRun(runs['fed_avg'][0].workdir)
  run.history = [{'round': 1, 'deployed': {'micro_loss': 2.0}}]
  run.client_figures = lambda name: np.array([1.0, np.inf, np.nan, 2.0])
  (axis,) = plots.client_distributions({'own': [run]}).axes
  assert axis.get_yticklabels()[0].get_text() == 'own\n(without 1 infinite)'


def test_long_names_of_methods_differ_in_figures(runs):
  labels = [f'fesem(4;prox_lambda={x};recluster_every=5)' for x in (0.01, 0.1)]
  both = dict(zip(labels, runs.values(), strict=True))
  curves = plots.curves_over_seeds(both).legends[0].get_texts()
  clients = plots.client_distributions(both).axes[0].get_yticklabels()
  row = {'mean': 1.0, 'low': None, 'high': None, 'p': None, 'pairs': 1}
  rows = [row | {'method': label} for label in labels]
  found = {'reference': 'a', 'of': '', 'task': 'classification', 'deployed': rows}
  differences = plots.forest(found).axes[0].get_yticklabels()
  runs = [plots.PlottedRun(each[0].workdir, label) for label, each in both.items()]
  single = plots.convergence(runs).legends[0].get_texts()
  panel = {label: [(1.0, None)] for label in labels}
  values = plots.by_value({('ARI', ''): panel}, 'x', ['1']).legends[0].get_texts()
  for texts in (curves, clients, differences, single, values):
    names = [text.get_text().replace('\n', '').replace(' ', '') for text in texts]
    wanted = [label.replace('fesem', 'FeSEM') for label in labels]
    assert [name.partition(',')[0] for name in names] == wanted


def test_a_name_that_begins_with_an_underscore_is_in_the_legend(runs):
  both = dict(zip(('_own', 'fed_avg'), runs.values(), strict=True))
  texts = plots.curves_over_seeds(both).legends[0].get_texts()
  assert [text.get_text() for text in texts] == [' _own', 'FedAvg']


def test_styles_have_the_fonts_and_widths_of_papers(tmp_path, runs):
  try:
    plots.use_style('paper')
    figure = plots.curves_over_seeds(runs)
    assert figure.axes[0].title.get_fontsize() == 8
    written = plots.save(figure, tmp_path / 'curves')
    assert [path.suffix for path in written] == ['.png', '.svg', '.pdf']
    assert (tmp_path / 'curves.pdf').stat().st_size < 100_000
  finally:
    plots.use_style('page')
  assert style.STYLE['font.size'] == 10
  with pytest.raises(UserError, match='style'):
    plots.use_style('poster')


@pytest.mark.nightly
def test_figures_of_papers_have_columns_and_eight_points(tmp_path):
  run = plots.PlottedRun(write_hand_made(tmp_path))
  counts = np.random.default_rng(0).integers(1, 9, (30, 10))
  dealt = plots.DealtClients(counts, np.arange(30) % 3, ('here', 'there', 'nowhere'))
  try:
    plots.use_style('paper')
    drawn = {
      'clusters': (plots.clusters_over_rounds(run), 6.7),
      'confusion': (plots.confusion_by_cluster(run), 6.7),
      'map': (plots.map_of_clients(run), 6.7),
      'partitions': (plots.compared_partitions(dict.fromkeys('abcd', dealt), 'x'), 6.7),
      'sheets': (plots.sheets(run), 6.7),
      'one': (plots.compared_partitions({'a': dealt}, 'x'), 3.4),
    }
    for name, (figure, width) in drawn.items():
      plots.save(figure, tmp_path / name)
      with Image.open(tmp_path / f'{name}.png') as image:
        assert image.width / 150 == pytest.approx(width, abs=0.1), name
      shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text()]
      assert min(t.get_fontsize() for t in shown) >= 8, name
  finally:
    plots.use_style('page')


def test_legends_have_no_digests(tmp_path):
  folders = [
    write_run(tmp_path / f'{m}{i}', m) for i, m in enumerate(('ditto', 'fesem'))
  ]
  drawn = [plots.PlottedRun(folder) for folder in folders]
  for i, run in enumerate(drawn):
    run.config['data_digest'] = f'digest{i}'
  names = [t.get_text() for t in plots.convergence(drawn).legends[0].get_texts()]
  assert not any('digest' in name for name in names)
