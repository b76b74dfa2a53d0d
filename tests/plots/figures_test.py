"""Figures draw the numbers of their frames, all of them in view."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from PIL import Image
from scipy import stats

import fesem_jax as fj
from fesem_jax import plots
from fesem_jax.analysis import tables
from fesem_jax.analysis.comparison import read_comparison
from fesem_jax.plots import figures, style
from fesem_jax.plots.lines import metric_name
from fesem_jax.run.results import files
from fesem_jax.utils.errors import UserError
from reproductions import published_curves
from tests.support.reported import value_of, write_comparison, write_run

SEEDS, KINDS = (0, 1, 2), ('png', 'svg')


@pytest.fixture(scope='module')
def comparison(tmp_path_factory):
  return read_comparison(write_comparison(tmp_path_factory.mktemp('c'), SEEDS))


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
  assert {f.stem for f in written} == {'convergence', 'clients', 'differences'}
  folders = comparison.runs.groupby('method', observed=True)['folder'].first()
  written = plots.draw_run(folders['fesem(2)'], tmp_path / 'run')
  names = {
    'convergence', 'clusters', 'objective', 'clients_pca', 'classes', 'confusion',
    'sheets',
  }  # fmt: skip
  assert {f.name for f in written} == {
    f'{n}.{s}' for n in names for s in ('png', 'svg')
  }
  assert all(file.stat().st_size > 5000 for file in written)
  unfinished = write_run(tmp_path / 'open', 'fed_avg', clusters=0, finished=False)
  assert [f.stem for f in plots.draw_run(unfinished, formats=['svg'])] == [
    'convergence'
  ]


def test_figures_of_a_result_need_no_files(tmp_path, ax):
  folder = write_run(tmp_path / 'run')
  rounds = fj.load_runs(folder).rounds
  assert plots.curves(rounds, ax, 'train_loss') is ax
  np.testing.assert_allclose(ax.lines[0].get_ydata(), [1, 1 / 2, 1 / 3, 1 / 4])


def test_curves_are_means_with_students_interval(comparison, ax):
  plots.curves(comparison.rounds, ax)
  each = 100 * np.array([[value_of(s, r, -0.1) for r in (2, 4)] for s in SEEDS])
  np.testing.assert_allclose(ax.lines[0].get_xdata(), [2, 4])
  np.testing.assert_allclose(ax.lines[0].get_ydata(), each.mean(axis=0))
  low, high = stats.t.interval(0.95, 2, each.mean(axis=0), stats.sem(each))
  edges = ax.collections[0].get_paths()[0].vertices[:, 1]
  np.testing.assert_allclose((edges.min(), edges.max()), (low[0], high[1]))
  assert ax.get_ylabel() == 'Deployed micro accuracy (%)'


def test_curves_over_bytes_are_in_the_unit_of_their_numbers(ax):
  rounds = rounds_of(**{'deployed.micro_rmse': [3, 2], 'total_bytes': [2e6, 4e6]})
  plots.curves(rounds, ax, over='total_bytes')
  np.testing.assert_allclose(ax.lines[0].get_xdata(), [2e6, 4e6])
  assert ax.get_xlabel() == 'Sent to and from clients (MB)'
  assert ax.xaxis.get_major_formatter()(2e6) == '2'
  assert ax.get_ylabel() == 'Deployed micro RMSE'


def test_legends_tell_of_missing_seeds_and_early_ends(comparison, ax):
  rounds = comparison.rounds
  first = rounds['method'] == 'fed_avg'
  fewer = rounds[~(first & (rounds['seed'] == 2))]
  plots.curves(fewer, ax)
  assert texts(ax.legend().get_texts())[0] == 'FedAvg (2 of 3 seeds)'
  early = rounds[~(first & (rounds['seed'] == 2) & (rounds['round'] > 2))]
  plots.curves(early, ax)
  assert 'FedAvg (to round 2)' in texts(ax.legend().get_texts())


def test_means_are_of_rounds_that_all_seeds_have():
  values = {'a': [1.0, 2.0, np.inf, 4.0], 'b': [3.0, 4.0, 5.0]}
  parts = [rounds_of(loss=v).assign(run=run) for run, v in values.items()]
  found = plots.average(pd.concat(parts), 'loss').set_index('round')
  assert found['mean'].tolist() == [2, 3, np.inf]  # A gap in a curve.
  assert found['seeds'].tolist() == [2, 2, 2]


def test_titles_say_of_which_clients_and_examples_figures_are(tmp_path):
  path = write_run(tmp_path / 'run') / 'config.json'
  path.write_text(path.read_text().replace('}', ', "evaluate_on": "validation"}'))
  frames = fj.load_runs(path.parent)
  runs = frames.runs.assign(**{'honest.deployed.micro_accuracy': 0.9})
  frames = frames._replace(runs=runs, clients=frames.clients.assign(honest=True))
  drawn = figures.figures_of_run(frames, files.read_portrait(path.parent))
  title = 'toy, FeSEM(2), honest clients, validation examples: '
  for name, what in {
    'clusters': 'clusters, bad clients too',
    'objective': 'Eq. 6',
  }.items():
    figure = drawn[name]()
    assert figure.get_suptitle() == title + what
    plt.close(figure)


def test_each_record_has_a_marker_where_rounds_are_left_out():
  def every(rounds):
    return style.curve_style(0, np.array(rounds))['markevery']

  assert every(np.arange(240)) == 20
  assert every(np.arange(0, 240, 10)) == every([7]) == every([]) == 1


def test_changes_of_eq_6_are_those_of_its_steps(ax):
  values = {
    'objective_local_step': [5.0, 4.0], 'objective_e_step': [4.5, 4.0],
    'objective': [3.0, 2.5],
  }  # fmt: skip
  plots.objective(rounds_of(**values), ax, changes=True)
  local, e_step, m_step = (line.get_ydata() for line in ax.lines[:3])
  np.testing.assert_allclose(local, [np.nan, 1.0])
  np.testing.assert_allclose(e_step, [-0.5, 0.0])
  np.testing.assert_allclose(m_step, [-1.5, -1.5])


def test_changes_beside_an_infinite_one_keep_their_scale(ax):
  values = {
    'objective_local_step': [5.0, np.inf], 'objective_e_step': [4.5, np.inf],
    'objective': [3.0, np.inf],
  }  # fmt: skip
  plots.objective(rounds_of(**values), ax, changes=True)
  assert ax.get_yscale() == 'symlog'
  assert ax.yaxis.get_transform().linthresh == pytest.approx(0.1)


def test_methods_are_drawn_over_the_values_of_a_flag(ax):
  labels = ['fesem(2;lr=0.1)', 'fesem(2;lr=0.01)', 'non_fed']
  runs = pd.DataFrame({'method': labels * 2, 'config.lr': [0.1, 0.01, None] * 2})
  runs = runs.assign(task='classification', seed=[0, 0, 0, 1, 1, 1])
  runs['deployed.micro_accuracy'] = [0.8, 0.6, 0.5, 0.9, 0.7, 0.5]
  plots.sweep(runs, ax, 'lr')
  assert [line.get_label() for line in ax.lines] == ['FeSEM(2)', 'NonFed']
  np.testing.assert_allclose(ax.lines[0].get_xdata(), [0.01, 0.1])
  np.testing.assert_allclose(ax.lines[0].get_ydata(), [65, 85])
  np.testing.assert_allclose(ax.lines[1].get_ydata(), [50, 50])
  assert texts(ax.get_xticklabels()) == ['0.01', '0.1']
  assert ax.get_xscale() == 'symlog'
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
  assert ax.get_xlabel() == 'Deployed micro accuracy (points)\nminus FedAvg'


@pytest.mark.parametrize(('column', 'worst'), [('accuracy', 0), ('rmse', -1)])
def test_the_worst_tenth_of_clients_is_marked(ax, column, worst):
  column = f'deployed_{column}'
  values = [*np.linspace(0.1, 1.0, 10), np.nan, np.inf, 0.0]
  clients = pd.DataFrame({column: values, 'honest': [True] * 12 + [False]})
  clients['method'] = pd.Categorical(['fed_avg'] * 13)
  plots.client_spread(clients, ax)
  known = tables.metric(column).factor * np.linspace(0.1, 1.0, 10)
  np.testing.assert_allclose(ax.lines[0].get_xdata(), [known[worst]])
  assert texts(ax.get_yticklabels()) == ['FedAvg\n(without 1 infinite)']
  with pytest.raises(UserError, match='clients'):
    plots.client_spread(clients, ax, 'deployed_f1')


def test_bars_join_methods_that_ranks_do_not_tell_apart(ax):
  scores = pd.DataFrame([[0.9, 0.8, 0.1]] * 6, columns=['fesem(2)', 'ditto', 'fed_avg'])
  plots.ranks(scores, ax)
  np.testing.assert_array_equal(ax.lines[0].get_xdata(), [1, 2, 3])
  bars = [line.get_ydata().tolist() for line in ax.lines[1:-1]]
  assert bars == [[-0.2, 1.2], [0.8, 2.2]]  # The difference is 1.35.
  assert texts(ax.get_yticklabels()) == ['FeSEM(2)', 'Ditto', 'FedAvg']


def test_only_recorded_rounds_of_clusters_are_drawn(ax):
  sizes = {'cluster_sizes.0': [1.0, 2, 3, 4], 'cluster_sizes.10': [9.0, 8, 7, 6]}
  rounds = rounds_of(**sizes, moved=[0.0, 2, 0, 1])
  plots.cluster_sizes(rounds[rounds['round'] != 2], ax)
  bands = [patch.get_data() for patch in ax.patches if patch.get_fill()]
  np.testing.assert_array_equal(bands[0].values, [1, np.nan, 3, 4])
  np.testing.assert_array_equal(bands[1].values, [10, np.nan, 10, 10])
  np.testing.assert_array_equal(bands[1].edges, [0.5, 1.5, 2.5, 3.5, 4.5])
  assert texts(ax.get_legend().get_texts()) == ['10: 6', '0: 4']


def portrait_of(count=30):
  assignment = np.arange(count) % 3
  noise = np.random.default_rng(0).normal(size=(count, 4))
  return {
    'names': np.array([f'c{i}' for i in range(count)]), 'assignment': assignment,
    'truth': assignment % 2, 'truth_names': np.array(['here', 'there']),
    'sampled': np.arange(count), 'coordinates': 3 * noise + 5 * assignment[:, None],
    'variance': np.array([0.6, 0.2, 0.1, 0.1]),
  }  # fmt: skip


def test_maps_enlarge_tight_clusters(ax):
  portrait = portrait_of()
  points = plots.client_points(portrait)
  plots.client_map(points, ax)
  assert not ax.child_axes
  assert texts(ax.get_legend().get_texts())[-3:] == ['cluster 2', 'here', 'there']
  assert ax.get_xlabel() == 'PC 1 (60 %)'
  tight = portrait['coordinates'] / 20 + 5 * portrait['assignment'][:, None]
  plots.client_map(plots.client_points(portrait | {'coordinates': tight}), ax)
  assert [inside.get_title() for inside in ax.child_axes] == ['0', '1', '2']


def test_maps_of_many_clients_are_pixels_in_vector_files(tmp_path, ax):
  plots.client_map(plots.client_points(portrait_of(50_000)), ax)
  assert all(points.get_rasterized() for points in ax.collections)
  (path,) = plots.save(ax.figure, tmp_path / 'map', ['svg'])
  assert path.stat().st_size < 1_000_000


def test_without_true_clusters_the_clusters_have_markers(ax):
  points = plots.client_points(portrait_of() | {'truth': np.array([])})
  plots.client_map(points, ax)
  assert len({h.get_marker() for h in ax.get_legend().legend_handles}) == 3


def test_confusion_is_in_percent_of_true_classes(ax):
  counts = pd.DataFrame([[3, 1], [0, 0]], columns=['cat', 'dog'])
  plots.confusion(counts, ax)
  np.testing.assert_allclose(ax.images[0].get_array(), [[75, 25], [0, 0]])
  assert texts(ax.texts) == ['75', '25']
  assert texts(ax.get_yticklabels()) == ['cat', 'dog']
  assert ax.get_title() == '75.0 % of 4'


def test_partitions_are_in_the_order_of_true_clusters(ax):
  counts = np.array([[4, 0], [1, 3], [0, 2], [2, 2]])
  frame = plots.class_counts(
    counts, np.array([1, 0, 1, 0]), ('here', 'there'), ['a', 'b']
  )
  plots.partition(frame, ax)
  shares = np.array([[1 / 4, 1 / 2, 1, 0], [3 / 4, 1 / 2, 0, 1]])
  np.testing.assert_allclose(ax.images[0].get_array(), shares)
  (below,) = ax.child_axes
  assert [bar.get_height() for bar in below.patches] == [4, 4, 4, 2]
  assert texts(below.get_legend().get_texts()) == ['here', 'there']
  many = plots.class_counts(np.ones((500, 30), int), np.arange(500) % 50)
  below = plots.partition(many, ax).child_axes[-1]
  assert below.get_xlabel() == '80 of 500 clients'
  assert texts(below.get_legend().get_texts())[-1] == '43 others'
  plain = plots.partition(plots.class_counts(np.array([[4], [2]])), ax)
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
  assert image.min() >= 0
  assert image.max() <= 1
  assert 0.2 < image.mean() < 0.8
  assert texts(ax.get_yticklabels()) == ['a', 'b']


def test_examples_are_shown_with_their_classes(ax):
  train, _ = fj.data.load('digits', num_clients=10)
  frame = plots.example_images(train, [f'digit {i}' for i in range(10)])
  assert frame['client'].nunique() == 8
  assert frame.groupby('client').size().max() == 10
  x, y = train.client(0)
  assert frame['label'][0] == f'digit {y[0]}'
  np.testing.assert_allclose(frame['image'][0], x[0] / 16, atol=1e-6)
  plots.sheet(frame, ax)
  assert texts(ax.texts)[0] == f'digit {y[0]}'


def test_long_names_of_methods_differ_in_figures(comparison, ax):
  long = [f'fesem(4;prox_lambda={x};recluster_every=5)' for x in (0.01, 0.1)]
  rename = dict(zip(['fed_avg', 'fesem(2)'], long, strict=True)) | {
    'hypo_cluster(2)': '_own'
  }
  rounds, clients = (
    frame.assign(method=frame['method'].cat.rename_categories(rename))
    for frame in (comparison.rounds, comparison.clients)
  )
  plots.curves(rounds, ax)
  plots.client_spread(clients, plt.figure().add_subplot())
  names = [texts(ax.legend().get_texts()), texts(plt.gca().get_yticklabels())]
  plt.close()
  for drawn in names:
    joined = [name.replace('\n', '').replace(' ', '') for name in drawn]
    # A legend leaves out what begins with an underscore.
    assert sorted(joined) == sorted(
      [*(n.replace('fesem', 'FeSEM') for n in long), '_own']
    )


@pytest.mark.parametrize(
  ('metric', 'name'),
  [
    ('honest.finetuned.macro_f1', 'Honest fine-tuned macro F1 (%)'),
    ('deployed_rmse', 'Deployed RMSE'),
    ('clusters.ari', 'ARI'),
    ('train_loss', 'Train loss'),
    ('total_seconds', 'Seconds of training'),
  ],
)
def test_metrics_have_names_on_axes(metric, name):
  assert metric_name(metric) == name


def test_styles_have_the_fonts_and_widths_of_papers(tmp_path, comparison, monkeypatch):
  monkeypatch.setattr(plt, 'rcParams', plt.rcParams.copy())
  try:
    plots.use_style('paper')
    written = plots.draw_comparison(comparison, tmp_path)
  finally:
    plots.use_style('page')
  assert {file.suffix for file in written} == {'.png', '.svg', '.pdf'}
  inches = {'convergence': 6.7, 'differences': 3.4}
  for name, width in inches.items():
    with Image.open(tmp_path / f'{name}.png') as image:
      assert image.width == pytest.approx(width * 150, abs=2)
  with pytest.raises(UserError, match='style'):
    plots.use_style('poster')


def test_the_same_figure_is_the_same_file(tmp_path, comparison):
  def drawn(name):
    written = plots.draw_comparison(comparison, tmp_path / name, ['svg', 'pdf'])
    return [path.read_bytes() for path in written]

  assert drawn('a') == drawn('b')


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
  assert {'b', 'c'} <= set(names[1])
  (legend,) = figure.legends
  assert texts(legend.get_texts()) == ['a', 'b', 'c']
