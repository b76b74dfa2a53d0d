"""Figures draw the numbers of their frames."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

import fesem_jax as fj
from fesem_jax import plots
from fesem_jax.plots import figures
from reproductions import published_curves
from tests.support.reported import value_of, write_comparison, write_run

SEEDS = (0, 1, 2)
OF_RUN = {'clusters', 'clients_pca', 'sheets'}
OF_METHODS = {'convergence', 'differences', 'classes'}


@pytest.fixture(scope='module')
def comparison(tmp_path_factory):
  return fj.Comparison(
    fj.load_runs(write_comparison(tmp_path_factory.mktemp('c'), SEEDS))
  )


@pytest.fixture
def ax():
  figure, ax = plt.subplots()
  yield ax
  plt.close(figure)


def texts(labels):
  return [text.get_text() for text in labels]


def rounds_of(**metrics):
  """A frame of one run: metric -> its values in rounds 1, 2, ..."""
  parts = [
    pd.DataFrame({'round': np.arange(1, len(values) + 1), 'metric': metric})
    .assign(value=values, run='a/seed0', method=pd.Categorical(['a'] * len(values)))
    for metric, values in metrics.items()
  ]  # fmt: skip
  return pd.concat(parts, ignore_index=True)


def test_every_figure_of_runs_is_drawn(comparison, tmp_path):
  written = plots.draw_comparison(comparison, tmp_path / 'all', ['png'])
  clustered = {f'{m}(2)_{name}' for m in ('fesem', 'hypo_cluster') for name in OF_RUN}
  assert {f.stem for f in written} == OF_METHODS | clustered
  folders = comparison.runs.groupby('method', observed=True)['folder'].first()
  written = plots.draw_run(folders['fesem(2)'], tmp_path / 'run')
  names = OF_RUN | {'convergence', 'classes'}
  assert {f.name for f in written} == {
    f'{n}.{k}' for n in names for k in ('png', 'svg')
  }
  assert all(file.stat().st_size > 5000 for file in written)
  unfinished = write_run(tmp_path / 'open', 'fed_avg', clusters=0, finished=False)
  drawn = plots.draw_run(unfinished, formats=['svg'])
  assert [f.stem for f in drawn] == ['convergence']


def test_curves_are_means_with_a_deviation(comparison, ax):
  plots.curves(comparison.rounds, ax)
  each = 100 * np.array([[value_of(s, r, -0.1) for r in (2, 4)] for s in SEEDS])
  np.testing.assert_allclose(ax.lines[0].get_xdata(), [2, 4])
  np.testing.assert_allclose(ax.lines[0].get_ydata(), each.mean(axis=0))
  edges = ax.collections[0].get_paths()[0].vertices[:, 1]
  low, high = (each.mean(axis=0) + sign * each.std(axis=0, ddof=1) for sign in (-1, 1))
  np.testing.assert_allclose((edges.min(), edges.max()), (low[0], high[1]))
  assert ax.get_ylabel() == 'Deployed micro accuracy (%)'


def test_curves_over_bytes_are_in_the_unit_of_their_numbers(ax):
  rounds = rounds_of(**{'deployed.micro_rmse': [3, 2], 'total_bytes': [2e6, 4e6]})
  plots.curves(rounds, ax, over='total_bytes')
  np.testing.assert_allclose(ax.lines[0].get_xdata(), [2e6, 4e6])
  assert ax.get_xlabel() == 'Sent to and from clients'
  assert ax.xaxis.get_major_formatter()(2e6) == '2 MB'


def test_legends_tell_of_missing_seeds_and_early_ends(comparison, ax):
  rounds = comparison.rounds
  last_seed = (rounds['method'] == 'fed_avg') & (rounds['seed'] == 2)
  plots.curves(rounds[~last_seed], ax)
  assert texts(ax.legend().get_texts())[0] == 'fed_avg (2 of 3 seeds)'
  plots.curves(rounds[~(last_seed & (rounds['round'] > 2))], ax)
  assert 'fed_avg (to round 2)' in texts(ax.legend().get_texts())
  # Means are of the rounds that all seeds have.
  values = {'a': [1.0, 2.0, np.inf, 4.0], 'b': [3.0, 4.0, 5.0]}
  parts = [rounds_of(loss=v).assign(run=run) for run, v in values.items()]
  result = plots.average(pd.concat(parts), 'loss').set_index('round')
  assert result['mean'].tolist() == [2, 3, np.inf]  # A gap in a curve.


def test_titles_say_of_which_clients_and_examples_figures_are(tmp_path):
  path = write_run(tmp_path / 'run') / 'config.json'
  text = path.read_text().replace('}', ', "evaluate_on": "validation"}')
  path.write_text(text.replace('toy', 'npz(/a/b/toy.npz, y=x/y)'))
  frames = fj.load_runs(path.parent)
  runs = frames.runs.assign(**{'honest.deployed.micro_accuracy': 0.9})
  frames = frames._replace(runs=runs, clients=frames.clients.assign(honest=True))
  drawn = figures.figures_of_run(frames)
  title = 'npz(toy.npz, y=y), fesem(2), honest clients, validation examples: '
  assert drawn['clusters']().get_suptitle() == title + 'clusters, bad clients too'


def test_methods_are_drawn_over_the_values_of_a_flag(ax):
  labels = ['fesem(2;lr=0.1)', 'fesem(2;lr=0.01)', 'non_fed']
  runs = pd.DataFrame({'method': labels * 2, 'config.lr': [0.1, 0.01, None] * 2})
  runs = runs.assign(task='classification', seed=[0, 0, 0, 1, 1, 1])
  runs['deployed.micro_accuracy'] = [0.8, 0.6, 0.5, 0.9, 0.7, 0.5]
  plots.sweep(runs, ax, 'lr')
  assert [line.get_label() for line in ax.lines] == ['fesem(2)', 'non_fed']
  np.testing.assert_allclose(ax.lines[0].get_ydata(), [65, 85])
  np.testing.assert_allclose(ax.lines[1].get_ydata(), [50, 50])
  assert texts(ax.get_xticklabels()) == ['0.01', '0.1']
  # One number of an expression, which is no flag of its own.
  runs['method'] = runs['method'].str.replace('lr=', 'partition.alpha=')
  ax.clear()
  plots.sweep(runs, ax, 'partition.alpha')
  assert texts(ax.get_xticklabels()) == ['0.01', '0.1']


def test_differences_are_filled_where_p_is_small(ax):
  rows = {
    'a$b': (2.0, 1.0, 3.0, 0.01), 'c': (-1.0, -3.0, 1.0, 0.2),
    'd': (-np.inf, np.nan, np.nan, np.nan),
  }  # fmt: skip
  columns = ['difference', 'low', 'high', 'p']
  frame = pd.DataFrame.from_dict(rows, orient='index', columns=columns)
  frame.attrs = {'reference': 'fed_avg', 'column': 'deployed.micro_accuracy'}
  plots.differences(frame, ax)
  _, bar, first, _, second, _, third = ax.lines
  np.testing.assert_allclose(bar.get_xdata(), [1, 3])
  assert first.get_markerfacecolor() == first.get_color() == plots.PALETTE[0]
  assert [p.get_markerfacecolor() for p in (second, third)] == ['white'] * 2
  assert texts(ax.get_yticklabels()) == [r'a\$b', 'c', 'd\n(infinite)']
  assert ax.get_xlabel() == 'Deployed micro accuracy (points)\nminus fed_avg'


def test_only_recorded_rounds_of_clusters_are_drawn(ax):
  sizes = {'cluster_sizes.0': [1.0, 2, 3, 4], 'cluster_sizes.10': [9.0, 8, 7, 6]}
  rounds = rounds_of(**sizes, moved=[0.0, 2, 0, 1])
  plots.cluster_sizes(rounds[rounds['round'] != 2], ax)
  bands = [patch.get_data() for patch in ax.patches if patch.get_fill()]
  np.testing.assert_array_equal(bands[0].values, [1, np.nan, 3, 4])
  np.testing.assert_array_equal(bands[1].values, [10, np.nan, 10, 10])
  np.testing.assert_array_equal(bands[1].edges, [0.5, 1.5, 2.5, 3.5, 4.5])
  assert texts(ax.get_legend().get_texts()) == ['10: 6', '0: 4']


def test_maps_of_many_clients_are_pixels_in_vector_files(tmp_path, ax):
  count = 50_000
  assignment = np.arange(count) % 3
  portrait = {
    'names': np.array([f'c{i}' for i in range(count)]), 'assignment': assignment,
    'truth': assignment % 2, 'truth_names': np.array(['here', 'there']),
    'sampled': np.arange(count), 'variance': np.array([0.6, 0.2]),
    'coordinates': np.random.default_rng(0).normal(size=(count, 2)),
  }  # fmt: skip
  plots.client_map(plots.client_points(portrait), ax)
  assert texts(ax.get_legend().get_texts())[-3:] == ['cluster 2', 'here', 'there']
  assert ax.get_xlabel() == 'PC 1 (60 %)'
  assert all(points.get_rasterized() for points in ax.collections)
  (path,) = plots.save(ax.figure, tmp_path / 'map', ['svg'])
  assert path.stat().st_size < 1_000_000
  # Without true clusters, the clusters have markers.
  unknown = portrait | {'truth': []}
  ax = plots.client_map(plots.client_points(unknown), plt.figure().subplots())
  assert len({h.get_marker() for h in ax.get_legend().legend_handles}) == 3


def test_partitions_are_in_the_order_of_true_clusters():
  ax, below = plt.figure().subplots(2)
  counts = np.array([[4, 0], [1, 3], [0, 2], [2, 2]])
  clusters = np.array([1, 0, 1, 0])
  frame = plots.class_counts(counts, clusters, ('here', 'there'), ['a', 'b'])
  plots.partition(frame, ax, below)
  shares = np.array([[1 / 4, 1 / 2, 1, 0], [3 / 4, 1 / 2, 0, 1]])
  np.testing.assert_allclose(ax.images[0].get_array(), shares)
  assert [bar.get_height() for bar in below.patches] == [4, 4, 4, 2]
  assert texts(below.get_legend().get_texts()) == ['here', 'there']
  many = plots.class_counts(np.ones((500, 30), int), np.arange(500) % 50)
  plots.partition(many, ax, below)
  assert below.get_xlabel() == '80 of 500 clients'
  assert texts(below.get_legend().get_texts())[-1] == '43 others'
  plain = plots.partition(plots.class_counts(np.array([[4], [2]])), ax, below)
  assert not len(plain.get_yticks())  # Without classes.


@pytest.mark.parametrize('channels', [1, 3, 4])
@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
def test_images_of_any_channels_are_shown(ax, channels, dtype):
  images = np.random.default_rng(0).uniform(1, 255, (2, 3, 5, 8, 8, channels))
  portrait = {'names': np.array(['a', 'b', 'c']), 'sheet_images': images.astype(dtype)}
  portrait['sheet_clients'] = np.array([[0, 1, -1], [2, 0, 1]])
  frame = plots.typical_images(portrait)
  assert len(frame) == 5 * 5  # The third client of cluster 0 is missing.
  plots.sheet(frame[frame['cluster'] == 0], ax)
  image = np.asarray(ax.images[0].get_array())
  assert image.shape[:2] == (2 * 9, 5 * 9)
  assert 0 <= image.min() < 0.2 < image.mean() < 0.8 < image.max() <= 1
  assert texts(ax.get_yticklabels()) == ['a', 'b']


def test_long_names_of_methods_differ_in_figures(comparison, ax):
  long = [f'fesem(4;prox_lambda={x};recluster_every=5)' for x in (0.01, 0.1)]
  names = dict(
    zip(['fed_avg', 'fesem(2)', 'hypo_cluster(2)'], [*long, '_own'], strict=True)
  )
  method = comparison.rounds['method'].cat.rename_categories(names)
  plots.curves(comparison.rounds.assign(method=method), ax)
  drawn = [re.sub(r'\s', '', name) for name in texts(ax.legend().get_texts())]
  # A legend leaves out what begins with an underscore.
  assert sorted(drawn) == ['_own', *long]


def test_published_curves_of_two_measures_have_an_axis_each():
  points = [(1, 0.2), (2, 0.9)]
  lines = [
    published_curves.Line('a', points, None, 'ari'),
    published_curves.Line('b', points, 0.8, 'deployed'),
    published_curves.Line('c', points, None, 'deployed'),
  ]
  figure = published_curves.drawn(lines)
  names = [[line.get_label() for line in axis.lines] for axis in figure.axes]
  assert [len(each) for each in names] == [1, 3]  # One is what was published.
  assert texts(figure.legends[0].get_texts()) == ['a', 'b', 'c']
