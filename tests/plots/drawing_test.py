"""Figures show what is recorded, all of it in view, and say what they show."""

import json

import numpy as np
import pytest

from tests.support.plotted import write_run

plots = pytest.importorskip('fesem_jax.plots')
published_curves = pytest.importorskip('reproductions.published_curves')
plt = pytest.importorskip('matplotlib.pyplot')


@pytest.fixture
def workdir(tmp_path):
  return write_run(tmp_path)


def test_maps_enlarge_tight_clusters(workdir):
  def panels(spread):
    arrays = dict(np.load(workdir / 'clients.npz'))
    noise = np.random.default_rng(0).normal(size=(30, 4))
    arrays['coordinates'] = spread * noise + 5 * arrays['assignment'][:, None]
    np.savez(workdir / 'clients.npz', **arrays)
    return plots.map_of_clients(plots.PlottedRun(workdir)).axes

  assert len(panels(3.0)) == 1
  _, *enlarged = panels(0.1)
  titles = [axis.get_title() for axis in enlarged]
  assert titles == ['cluster 0', 'cluster 1', 'cluster 2']
  assert enlarged[0].get_ylabel() == 'enlarged'


def test_maps_of_many_clients_are_pixels_in_vector_files(workdir):
  run = plots.PlottedRun(workdir)
  few = plots.map_of_clients(run).axes[0].collections
  count, held = 100_000, run.clients
  held['coordinates'] = np.resize(held['coordinates'], (count, 4))
  for name in ('truth', 'assignment'):
    held[name] = np.arange(count) % 3
  held['sampled'] = np.arange(count)
  many = plots.map_of_clients(run)
  assert not any(points.get_rasterized() for points in few)
  assert all(points.get_rasterized() for points in many.axes[0].collections)
  plots.save(many, workdir / 'map')
  assert (workdir / 'map.svg').stat().st_size < 1_000_000


def test_without_true_clusters_the_clusters_have_markers(workdir):
  run = plots.PlottedRun(workdir)
  run.clients['truth'] = np.array([])
  figure = plots.map_of_clients(run)
  markers = {h.get_marker() for h in figure.axes[0].get_legend().legend_handles[1:]}
  assert len(markers) == 3


def test_panels_of_accuracy_have_one_range(workdir):
  records = [json.loads(line) for line in (workdir / 'metrics.jsonl').open()]
  for record in records:
    record['finetuned'] = {'micro_accuracy': 0.1}
  (workdir / 'metrics.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in records))
  tuned, deployed, _ = plots.convergence([plots.PlottedRun(workdir)]).axes
  assert tuned.get_ylim() == deployed.get_ylim()
  low, high = tuned.get_ylim()
  assert low < 10 < 75 < high


def test_only_recorded_rounds_are_drawn(workdir):
  records = [json.loads(line) for line in (workdir / 'metrics.jsonl').open()]
  kept = ('round', 'train_loss')
  records = [r if r['round'] in (0, 4, 5) else {k: r[k] for k in kept} for r in records]
  (workdir / 'metrics.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in records))
  run = plots.PlottedRun(workdir)
  sizes, moved, agreement = plots.clusters_over_rounds(run).axes
  bands = [patch for patch in sizes.patches if patch.get_fill()]
  assert len(bands) == 3
  for k, band in enumerate(bands):
    top, edges, bottom = band.get_data()
    np.testing.assert_array_equal(edges, np.arange(7) - 0.5)
    there = np.array([1, np.nan, np.nan, np.nan, 1, 1])
    np.testing.assert_array_equal(top, 10 * (k + 1) * there)
    np.testing.assert_array_equal(bottom, top - 10)
  assert [bar.get_x() + bar.get_width() / 2 for bar in moved.patches] == [0, 4, 5]
  lines = [*agreement.lines, plots.convergence([run]).axes[0].lines[0]]
  for line in lines:  # Each record has its marker.
    assert line.get_xdata().tolist() == [0, 4, 5]
    assert line.get_markevery() == 1
  for record in records:
    record.pop('moved', None)
  (workdir / 'metrics.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in records))
  figure = plots.clusters_over_rounds(plots.PlottedRun(workdir))
  titles = [axis.get_title() for axis in figure.axes]
  assert titles == ['Clients of each cluster', 'Agreement with the true clusters']


def test_dense_records_have_few_markers():
  from fesem_jax.plots.style import mark_every

  assert mark_every(np.arange(240)) == 20
  assert mark_every(np.arange(0, 240, 10)) == 1
  assert mark_every(np.array([], int)) == mark_every(np.array([7])) == 1


@pytest.mark.filterwarnings('error')
def test_panels_are_wide_where_a_run_has_no_clusters(workdir):
  clustered, plain = plots.PlottedRun(workdir), plots.PlottedRun(workdir)
  plain.history = [
    {k: v for k, v in record.items() if k != 'objective'} for record in plain.history
  ]
  plain.name = 'fed_avg'
  figure = plots.convergence([plain, clustered])
  plots.save(figure, workdir / 'both')
  assert len(figure.axes[2].lines) == 1
  for axis in figure.axes:
    assert axis.get_position().width > 0.2


def test_spreads_are_explained():
  for spread, words in ((None, ''), (0.5, 'one standard deviation')):
    panels = {('Fine-tuned', '%'): {'a': [(1.0, spread), None]}}
    figure = plots.by_value(panels, 'x', ['1', '2'])
    assert words in figure.legends[0].get_title().get_text()
    assert bool(figure.legends[0].get_title().get_text()) == bool(words)


@pytest.mark.parametrize('channels', [2, 3, 4])
@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
def test_images_of_any_channels_are_shown(workdir, channels, dtype):
  arrays = dict(np.load(workdir / 'clients.npz'))
  shape = (3, 6, 12, 32, 32, channels)
  drawn = np.random.default_rng(0).uniform(-20, 255, shape)
  arrays['sheet_images'] = drawn.clip(0 if dtype == np.uint8 else None).astype(dtype)
  np.savez(workdir / 'clients.npz', **arrays)
  figure = plots.sheets(plots.PlottedRun(workdir))
  image = figure.axes[0].images[0].get_array()
  assert image.shape == (6 * 38, 12 * 34, 3)[: 3 if channels == 3 else 2]
  if channels == 3:  # Not cut off at the bounds of colors.
    most = 255 if dtype == np.uint8 else 1
    assert image.min() >= 0
    assert most / 2 < image.max() <= most
    assert 0.2 < image.mean() / most < 0.8


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
  assert names[0] == ['a']
  assert {'b', 'c'} <= set(names[1])
  (legend,) = figure.legends
  assert [text.get_text() for text in legend.get_texts()] == ['a', 'b', 'c']
