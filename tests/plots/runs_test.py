import json
import pathlib
import re
import xml.etree.ElementTree

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fesem_jax import algorithms, data
from fesem_jax.run import figure_data
from fesem_jax.utils import display
from fesem_jax.utils.errors import UserError
from tests.support.plotted import write_run

plots = pytest.importorskip('fesem_jax.plots')
plt = pytest.importorskip('matplotlib.pyplot')
style = pytest.importorskip('fesem_jax.plots.style')
legend_below = style.legend_below


def test_values_have_a_line_for_each_rule_and_its_deviation():
  lines = {'weights': [(50.0, 1.0), (60.0, 3.0)], 'a$b': [(40.0, None), (70.0, None)]}
  panels = {
    ('After joining', '%'): lines,
    ('Fine-tuned', '%'): dict([*lines.items()][:1]),
  }
  figure = plots.by_value(panels, 'examples', ['5', 'all'])
  left, right = figure.axes
  assert [text.get_text() for text in left.get_xticklabels()] == ['5', 'all']
  assert (left.get_title(), len(right.lines)) == ('After joining', 1)
  for line, band, figures in zip(
    left.lines, left.collections, lines.values(), strict=True
  ):
    np.testing.assert_allclose(line.get_ydata(), [mean for mean, _ in figures])
    (path,) = band.get_paths()
    for place, (mean, spread) in zip(line.get_xdata(), figures, strict=True):
      found = path.vertices[path.vertices[:, 0] == place, 1]
      np.testing.assert_allclose(np.ptp(found), 2 * (spread or 0), atol=1e-9)
      np.testing.assert_allclose(found.max(), mean + (spread or 0))
  first, second = (line.get_xdata()[0] for line in left.lines)
  assert 0 < second - first < 0.2  # Equal ones do not hide each other.
  labels = [text.get_text() for text in figure.legends[0].get_texts()]
  assert labels == ['weights', r'a\$b']


@pytest.fixture
def workdir(tmp_path):
  return write_run(tmp_path)


@pytest.fixture
def names_drawn(monkeypatch):
  """Names of the figures that `draw_run` would save of a run."""
  monkeypatch.setattr('fesem_jax.plots.drawing.save', lambda figure, path, **_: [path])
  return lambda run: {path.name for path in plots.draw_run(run)}


def test_every_figure_is_drawn_twice_the_same(workdir):
  written = plots.draw_run(plots.PlottedRun(workdir))
  assert sorted({p.stem for p in written}) == [
    'clients_pca', 'clusters', 'confusion', 'convergence', 'sheets',
  ]  # fmt: skip
  for path in written:
    start = path.read_bytes()[:8]
    assert start == b'\x89PNG\r\n\x1a\n' if path.suffix == '.png' else b'<?xml' in start
  svg = (workdir / 'plots' / 'convergence.svg').read_text()
  again = plots.convergence([plots.PlottedRun(workdir)])
  plots.save(again, workdir / 'again')
  assert (workdir / 'again.svg').read_text() == svg


def test_confusion_is_drawn_as_shares_of_true_classes_by_cluster(workdir):
  run = plots.PlottedRun(workdir)
  counts = run.clients['confusion']
  counts[1], counts[2, 3] = 0, 0  # A cluster and a class without test examples.
  run.clients['confusion'] = counts
  figure = plots.confusion_by_cluster(run)
  first, last, _ = figure.axes
  for axis, k in ((first, 0), (last, 2)):
    size = counts[k].sum()
    right = 100 * counts[k].trace() / size
    assert axis.get_title() == f'cluster {k}: {right:.1f} % of {size} examples'
    drawn = axis.images[0].get_array()
    for true in range(5):
      if counts[k, true].any():
        want = 100 * counts[k, true] / counts[k, true].sum()
        np.testing.assert_allclose(drawn[true], want)
  assert drawn.mask[3].all()


def test_confusion_without_clusters_or_test_examples(workdir):
  run = plots.PlottedRun(workdir)
  run.clients['assignment'] = np.array([], int)
  run.clients['confusion'] = np.eye(40, dtype=int)[None]
  figure = plots.confusion_by_cluster(run)
  assert figure.axes[0].get_title() == 'all clients: 100.0 % of 40 examples'
  run.clients['confusion'] = np.zeros((1, 3, 3), int)
  of_all = plots.confusion_by_cluster, plots.clusters_over_rounds
  assert not any('bad clients' in draw(run).get_suptitle() for draw in of_all)
  run.history[0]['honest'] = {}
  assert all('bad clients too' in draw(run).get_suptitle() for draw in of_all)


FORMULA = '$\\frac{%d$'
ODD_NAMES = (
  FORMULA, '$x', 'a\\$b$', '\ud800', 'bell\a\x1b[2J\x00', '<&>"', '\ufffe\u202e',
  'n' * 30_000, 'line\nbreak', '\\', '{%s}', '',
)  # fmt: skip


def test_figures_show_names_of_all_kinds(workdir):
  """Each SVG is well-formed, and a formula is shown as it is written."""

  def named(name):
    run = plots.PlottedRun(workdir)
    run.name, run.config = name, run.config | {name: name, 'dataset': name}
    return run

  everything = FORMULA + ''.join(ODD_NAMES)
  run = named(everything)
  run.clients |= {
    'names': np.array([ODD_NAMES[i % len(ODD_NAMES)] for i in range(30)]),
    'truth': np.array(['b', everything, 'c'])[run.clients['truth']],
  }
  figures = {
    'convergence': plots.convergence([named(name) for name in (*ODD_NAMES, FORMULA)]),
    'sheets': plots.sheets(run),
    'clusters': plots.clusters_over_rounds(run),
    'map': plots.map_of_clients(run),
    'classes': plots.compared_partitions(
      {everything: plots.DealtClients(np.ones((30, 4), int))}, everything
    ),
  }
  for name, figure in figures.items():
    svg = workdir / f'{name}.svg'
    figure.savefig(svg, bbox_inches='tight')  # `plots.save` without the PNG.
    plt.close(figure)
    xml.etree.ElementTree.parse(svg)
    # Matplotlib writes each text that it draws into a comment.
    assert f'<!-- {FORMULA}' in svg.read_text()


def test_agreement_with_the_truth_has_a_curve_for_each_measure(workdir):
  panel = plots.clusters_over_rounds(plots.PlottedRun(workdir)).axes[2]
  assert [t.get_text() for t in panel.get_legend().get_texts()] == ['ARI', 'NMI', 'AMI']
  np.testing.assert_allclose(panel.lines[2].get_ydata(), np.arange(6) / 5 - 0.2)
  assert panel.get_ylim()[0] <= -0.2
  records = (workdir / 'metrics.jsonl').read_text().replace('ami', 'another')
  (workdir / 'metrics.jsonl').write_text(records)  # A run of an earlier version.
  panel = plots.clusters_over_rounds(plots.PlottedRun(workdir)).axes[2]
  assert len(panel.lines) == 2


def test_true_clusters_are_called_by_their_names(workdir):
  run = plots.PlottedRun(workdir)
  number = run.clients['truth']
  turned = [f'{angle} degrees' for angle in (0, 90, 180)]
  for truth, names, words in (
    (number, turned, turned),
    (number, [], ['true cluster 0', 'true cluster 1', 'true cluster 2']),
    (np.array(['Thai', 'Greek', 'Hindi'])[number], [], ['Greek', 'Hindi', 'Thai']),
  ):
    run.clients['truth'] = truth
    run.clients['truth_names'] = np.array(names)
    figure = plots.map_of_clients(run)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend[legend.index('marker: true cluster') + 1 :] == words
    titles = ' '.join(axis.get_title() for axis in plots.sheets(run).axes)
    assert all(f'10 of {word}' in titles for word in words)
    dealt = plots.DealtClients(np.eye(30, 4, dtype=int), truth, names)
    heat, bars = plots.compared_partitions({'a': dealt}, 'title').axes[:2]
    assert len(heat.lines) == 2  # Where another cluster begins.
    assert [text.get_text() for text in bars.get_legend().get_texts()] == words
    plt.close('all')


@pytest.mark.parametrize('odd', ODD_NAMES)
def test_what_is_shown_is_short_and_printable(odd):
  for show in (
    display.printable,
    display.in_figure,
    display.in_latex,
    display.in_markdown,
  ):
    assert show(odd).isprintable()
    assert len(show(odd)) < 600
  assert len(display.printable(odd, 20)) <= 20


def test_methods_have_the_names_that_the_manual_gives_them():
  manual = pathlib.Path('docs/methods.md').read_text()
  headings = re.findall('^### (.*)', manual, re.M)
  titles = {re.sub(r' \(.*', '', one) for of in headings for one in of.split(' and ')}
  assert set(display.PUBLISHED) == set(algorithms.METHODS)
  assert set(display.PUBLISHED.values()) <= titles
  assert display.method_name('fesem(4;prox_lambda=0)') == 'FeSEM(4;prox_lambda=0)'
  assert display.method_name('fed_avg \u2020') == 'FedAvg \u2020'
  assert display.method_name('Ours') == 'Ours'
  assert display.method_name('my_file:fed_avg') == 'my_file:fed_avg'
  said = 'minus that of fesem(4), with fed_avg; the oracle, --fed_avg_x, oracle(2)'
  assert display.with_method_names(said) == (
    'minus that of FeSEM(4), with FedAvg; the oracle, --fed_avg_x, Oracle(2)'
  )


def test_bytes_have_the_unit_that_their_numbers_need():
  for most, label, first in ((0.0006, 'kB', '100'), (0.02, 'MB', '5'), (8, 'GB', '2')):
    axis = plt.figure().subplots()
    axis.plot([0, most], [0, 1])
    axis.set_xticks([0, {'kB': 1e-4, 'MB': 5e-3, 'GB': 2}[label]])
    style.over_bytes(axis)
    assert axis.get_xlabel() == f'Sent to and from clients ({label})'
    assert axis.get_xticklabels()[1].get_text() == first


def test_names_are_escaped_for_each_place():
  assert display.printable('a' * 50 + 'z' * 50, 21) == 'a' * 9 + '...' + 'z' * 9
  assert display.printable('fesem(4;prox_lambda=0.1)') == 'fesem(4;prox_lambda=0.1)'
  assert display.in_latex('a_b%&#${}~^\\') == (
    r'a\_b\%\&\#\$\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}'
  )
  assert display.in_markdown('a_b|<b>') == r'a_b\|\<b\>'
  assert display.in_figure('$x$') == r'\$x\$'


def test_of_many_runs_the_best_and_fed_avg_have_colors(workdir):
  def ended_at(accuracy, name):
    run = plots.PlottedRun(workdir)
    run.name, run.config = name, {'algorithm': name}
    scores = [{'micro_accuracy': r * accuracy} for r in (1, 2)]
    run.history = [
      {'round': r, 'deployed': found, 'finetuned': found}
      for r, found in enumerate(scores, 1)
    ]
    return run

  accuracies = np.random.default_rng(0).permutation(15) / 100
  runs = [ended_at(a, f'run{i}') for i, a in enumerate(accuracies)]
  runs[int(np.argmin(accuracies))] = ended_at(accuracies.min(), 'fed_avg')
  figure = plots.convergence(runs)
  labels = [text.get_text() for text in figure.legends[0].get_texts()]
  best = [f'run{i}' for i in np.argsort(-accuracies)[:11]]
  assert labels == [*best, 'fed_avg', 'the other 3']
  lines = figure.axes[1].get_lines()
  assert [line.get_color() == '0.75' for line in lines] == [False] * 12 + [True] * 3
  assert len({(line.get_color(), line.get_marker()) for line in lines}) == 13
  found = sorted(float(line.get_ydata()[-1]) for line in lines)
  np.testing.assert_allclose(found, 200 * np.sort(accuracies))
  few = plots.convergence(runs[:12])
  assert len(few.legends[0].get_texts()) == 12


def test_figures_say_that_they_are_of_validation_examples(workdir):
  run, other = plots.PlottedRun(workdir), plots.PlottedRun(workdir)
  run.clients['confusion'] = np.eye(3, dtype=int)[None]
  run.clients['assignment'] = np.array([], int)

  def said():
    figures = (
      plots.convergence([run]),
      plots.curves_over_seeds({'a': [run]}),
      plots.confusion_by_cluster(run),
    )
    return [figure.get_suptitle() for figure in figures]

  assert not any('validation' in title for title in said())
  run.config['evaluate_on'] = 'validation'
  assert all('validation examples' in title for title in said())
  assert 'test examples' not in said()[-1]
  # Their labels tell some runs from others.
  figure = plots.convergence([run, other])
  assert 'validation' not in figure.get_suptitle()
  assert 'validation' in figure.legends[0].get_texts()[0].get_text()


def test_figures_of_several_methods_say_which_seed_they_draw(workdir):
  def of(name, seed):
    run = plots.PlottedRun(workdir)
    run.name, run.config = name, run.config | {'algorithm': name, 'seed': seed}
    return run

  alike = plots.convergence([of('a', 3), of('b', 3)])
  assert alike.get_suptitle().endswith('over rounds, seed 3 only')
  # The first seed of one method has diverged.
  figure = plots.convergence([of('a', 0), of('b', 1)])
  assert figure.get_suptitle().endswith('over rounds')
  labels = [text.get_text() for text in figure.legends[0].get_texts()]
  assert labels == ['a, seed 0', 'b, seed 1']
  assert 'seed' not in plots.convergence([of('a', 0)]).get_suptitle()


def test_labels_name_the_rounds_that_were_done(workdir):
  path = workdir / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {'rounds': 1}))
  run, other = plots.PlottedRun(workdir), plots.PlottedRun(workdir)
  done = run.history[-1]['round']
  assert done > 1
  other.config |= {'rounds': 99}
  drawn = plots.convergence([run, other]).legends[0]
  found = [text.get_text().split()[-1] for text in drawn.get_texts()]
  assert found == [str(done), '99']


def test_series_and_labels(workdir):
  run = plots.PlottedRun(workdir)
  rounds, values = run.series('finetuned', 'micro_accuracy')
  assert rounds.tolist() == list(range(6))
  np.testing.assert_allclose(values, 0.5 + np.arange(6) / 20)
  assert run.name == 'FeSEM(3)'
  other = plots.PlottedRun(workdir)
  other.config = run.config | {'seed': 1, 'prox_lambda': 0.1}
  figure = plots.convergence([run, other])
  axes = figure.axes
  assert all(axis.get_legend() is None for axis in axes)  # One for all panels.
  one, two = (t.get_text() for t in figure.legends[0].get_texts())
  assert one.startswith('FeSEM(3), ')
  assert 'seed 0' in one
  assert 'seed 1' in two
  assert 'prox_lambda 0.1' in two
  assert not plots.convergence([run]).legends
  np.testing.assert_allclose(axes[2].lines[0].get_ydata(), 2.0 - np.arange(6) / 5)


@pytest.mark.parametrize(
  ('length', 'columns'),
  [(1, 7), (9, 4), (14, 3), (150, 1)],  # 1, 2, 3 and 7 rows.
)
def test_a_legend_below_takes_as_few_rows_as_the_figure_is_wide(length, columns):
  figure, axis = plt.subplots(figsize=(6, 4))
  for i in range(7):
    axis.plot([0, 1], [0, i], label=str(i) * length)
  legend_below(figure, axis, title='Rule')
  (legend,) = figure.legends
  assert [len(text.get_text()) for text in legend.get_texts()] == [length] * 7
  assert legend._ncols == columns
  box = legend.get_window_extent()
  assert box.y1 <= 0
  assert (box.width <= figure.bbox.width) == (columns > 1)


def test_changes_beside_an_infinite_one_keep_their_scale(workdir):
  path = workdir / 'metrics.jsonl'
  records = [json.loads(line) for line in path.read_text().splitlines()]
  for record in records:
    steps = 'objective_local_step', 'objective_e_step'
    record |= dict.fromkeys(steps, record['objective'] + 0.1)
  records[3]['objective_local_step'] = np.inf
  path.write_text(''.join(json.dumps(record) + '\n' for record in records))
  (workdir / 'clients.npz').unlink()
  changes = plots.objective(plots.PlottedRun(workdir)).axes[1]
  assert changes.yaxis.get_transform().linthresh == pytest.approx(0.01)


def test_steps_of_a_round_are_drawn_where_they_were_tracked(workdir, names_drawn):
  values = {1: (3.0, 2.5, 1.0), 2: (1.5, 1.5, 1.25), 4: (0.75, 0.75, 0.5)}
  keys = ('objective_local_step', 'objective_e_step', 'objective')
  scores = {kind: {'micro_accuracy': 0.5} for kind in ('deployed', 'finetuned')}
  history = [{'round': 0} | scores]
  history += [{'round': 3} | dict.fromkeys(keys)]  # Nobody trained.
  history += [{'round': r} | dict(zip(keys, v, strict=True)) for r, v in values.items()]
  (workdir / 'metrics.jsonl').write_text(
    ''.join(json.dumps(r) + '\n' for r in sorted(history, key=lambda r: r['round']))
  )
  (workdir / 'clients.npz').unlink()
  assert 'objective' in names_drawn(plots.PlottedRun(workdir))
  figure = plots.objective(plots.PlottedRun(workdir))
  levels, changes = figure.axes
  for line, want in zip(levels.lines, np.transpose(list(values.values())), strict=True):
    np.testing.assert_allclose(line.get_xdata(), [1, 2, 4])
    np.testing.assert_allclose(line.get_ydata(), want)
  drawn = [line.get_ydata() for line in changes.lines[:3]]
  np.testing.assert_allclose(drawn[0], [np.nan, 0.5, np.nan])  # Round 3 is not known.
  np.testing.assert_allclose(drawn[1], [-0.5, 0, 0])
  np.testing.assert_allclose(drawn[2], [-1.5, -0.25, -0.25])
  labels = [text.get_text() for text in figure.legends[0].get_texts()]
  assert labels == ['Local step', 'E-step', 'M-step']
  assert (levels.get_yscale(), changes.get_yscale()) == ('linear', 'symlog')


def test_an_unfinished_run_has_only_its_curves(workdir, names_drawn):
  (workdir / 'clients.npz').unlink()
  assert names_drawn(plots.PlottedRun(workdir)) == {'convergence', 'clusters'}
  with pytest.raises(UserError, match='plots'):
    plots.PlottedRun(workdir / 'plots')


def test_principal_components_are_scikit_learns():
  points = np.random.default_rng(0).normal(size=(12, 30)) * np.linspace(3, 0.1, 30)
  centered = points - points.mean(axis=0)
  got = figure_data.principal_components(centered @ centered.T, 5)
  want = PCA(5).fit_transform(points)
  np.testing.assert_allclose(np.abs(got), np.abs(want), rtol=1e-6, atol=1e-8)


def test_sheets_show_the_clients_own_images_of_every_class():
  train, _ = data.load('digits', partition='rotated', num_clients=8)
  coordinates = np.random.default_rng(0).normal(size=(8, 3))
  picture = {'assignment': np.arange(8) % 2, 'sampled': np.arange(8)}
  out = figure_data.sheets(picture | {'coordinates': coordinates}, train)
  assert out['sheet_images'].shape == (2, 6, 12, 8, 8)
  assert (out['sheet_clients'][:, 4:] == -1).all()  # Four clients a cluster.
  client = out['sheet_clients'][1, 0]
  x, y = train.client(int(client))
  mine = {image.tobytes(): label for image, label in zip(x, y, strict=True)}
  labels = [mine[image.tobytes()] for image in out['sheet_images'][1, 0]]
  assert labels == sorted(labels)
  assert set(labels) == set(range(10))


def test_a_title_of_many_true_clusters_names_the_largest_three():
  from fesem_jax.run.results.truth import mix, true_clusters

  def of(truth, names=()):
    return mix(true_clusters(truth, names), np.arange(len(truth)) > 0)

  assert of(np.repeat(['a', 'b'], [2, 2])) == '2 of b, 1 of a'
  truth = np.repeat(np.arange(8), [2, 5, 2, 9, 1, 1, 4, 1])
  names = [*'abcdefgh']
  assert of(truth, names) == '9 of d, 5 of b, 4 of g, 6 of 5 others'


def test_classes_of_a_known_data_set_have_its_names(workdir):
  config = json.loads((workdir / 'config.json').read_text())
  (workdir / 'config.json').write_text(json.dumps(config | {'dataset': 'cifar10'}))
  arrays = dict(np.load(workdir / 'clients.npz'))
  np.savez(workdir / 'clients.npz', label_counts=np.ones((30, 10), int), **arrays)
  drawn = plots.draw_run(plots.PlottedRun(workdir))
  assert 'frog' in next(p for p in drawn if p.name == 'classes.svg').read_text()


def test_markers_at_the_ends_of_a_curve_are_whole(workdir):
  for axis in plots.convergence([plots.PlottedRun(workdir)]).axes:
    assert not any(line.get_clip_on() for line in axis.get_lines())


@pytest.mark.parametrize(
  ('over', 'values', 'at', 'name'),
  [
    ('gigabytes', {'bytes_down': 3 * 10**9, 'bytes_up': 10**9}, [5, 9, 13, 17, 21],
     'by_gigabytes'),
    ('simulated_seconds', {}, [10, 30, 60, 100, 150], 'by_seconds'),
  ],
)  # fmt: skip
def test_accuracy_is_drawn_over_what_was_sent_and_simulated_seconds(
  over, values, at, name, workdir, names_drawn
):
  run, silent = plots.PlottedRun(workdir), plots.PlottedRun(workdir)
  assert not run.until(over)
  for i, record in enumerate(run.history[1:]):
    record |= values or {'simulated_seconds': 10.0 * (i + 1)}
  run.history[1]['start_bytes_up'] = 10**9
  figure = plots.convergence([run, silent], over)
  for axis in figure.axes:
    (line,) = axis.get_lines()  # Of the other run nothing is known.
    np.testing.assert_allclose(line.get_xdata(), at)
    np.testing.assert_allclose(line.get_ydata(), 50 + 5 * np.arange(1, 6))
    assert axis.get_xlabel().endswith('of rounds') == (over == 'simulated_seconds')
  assert name in names_drawn(run)
