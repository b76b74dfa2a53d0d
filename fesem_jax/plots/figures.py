"""All figures of a run, and of methods over seeds, as files."""

import pathlib
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fesem_jax.analysis import tables
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.plots import clients, images, lines
from fesem_jax.plots.clients import Portrait
from fesem_jax.plots.style import STYLE, in_figure, legend_below, save
from fesem_jax.run.results.files import read_portrait
from fesem_jax.run.results.frames import Frames, load_runs

# Name of each figure -> what draws it.
Figures = dict[str, Callable[[], Figure]]
# Title of each panel -> what draws it, into its axes.
Panels = dict[str, Callable[..., Axes]]

_OVER = {
  'round': 'convergence', 'total_bytes': 'by_gigabytes',
  'total_simulated_seconds': 'by_seconds', 'epsilon': 'by_epsilon',
}  # fmt: skip
_KINDS = {'deployed': 'Deployed models', 'finetuned': 'Fine-tuned models'}
_LETTERS = 11  # Of a title, an inch.


def draw_run(
  workdir: str | pathlib.Path,
  folder: str | pathlib.Path = '',
  formats: Sequence[str] = (),
) -> list[pathlib.Path]:
  """Draws every figure that a run, finished or not, has data for.

  `folder` is by default `workdir/plots/`. For `formats` and what is returned, see
  `save`. Raises `UserError` if the folder holds no run.
  """
  frames, folder = load_runs(workdir), folder or pathlib.Path(workdir) / 'plots'
  return _saved(_curves(frames) | figures_of_run(frames), folder, formats)


def draw_comparison(
  comparison: Comparison, folder: str | pathlib.Path, formats: Sequence[str] = ()
) -> list[pathlib.Path]:
  """Draws every figure of methods over seeds that there are data for.

  Differences are to the comparison's reference, in its report. Of each method with
  clusters, figures of its first run have names that begin with its label. For `formats`
  and what is returned, see `save`.
  """
  figures = figures_of_methods(comparison)
  for run in clustered_runs(comparison.frames):
    label = str(run.runs['method'].iloc[0]).replace('/', '_')
    for name, draw in figures_of_run(run).items():
      # Clients have the same classes with every method.
      figures.setdefault(name if name == 'classes' else f'{label}_{name}', draw)
  return _saved(figures, folder, formats)


def _saved(
  figures: Figures, folder: str | pathlib.Path, formats: Sequence[str]
) -> list[pathlib.Path]:
  saved = [save(draw(), f'{folder}/{n}', formats) for n, draw in figures.items()]
  return [path for paths in saved for path in paths]


def clustered_runs(frames: Frames) -> list[Frames]:
  """The first run of each method with clusters."""
  sizes = frames.rounds[frames.rounds['metric'] == 'cluster_sizes.0']
  names = sizes.groupby('method', observed=True)['run'].first()
  return [Frames(*(frame[frame['run'] == run] for frame in frames)) for run in names]


def figures_of_run(frames: Frames) -> Figures:
  """Figures of the clusters and the clients of one run, as far as it has data."""
  rounds, config, figures = frames.rounds, frames.runs.iloc[0], Figures()
  folder = config['folder']  # '' in memory.
  portrait = read_portrait(pathlib.Path(folder)) if folder else {}
  bad = ', bad clients too' * ('honest' in frames.clients)
  recorded, panels = set(rounds['metric']), Panels()
  if 'cluster_sizes.0' in recorded:
    panels['Sizes'] = partial(lines.cluster_sizes, rounds)
    if rounds.loc[rounds['metric'] == 'moved', 'value'].any():
      panels['Moves'] = partial(lines.curves, rounds, metric='moved')
    if 'ari' in recorded:
      panels['Agreement'] = partial(lines.curves, rounds, metric='ari')
    title = _title(frames, f'clusters{bad}')
    figures['clusters'] = _side_by_side(panels, title, (4.4, 3.4))
  if len(portrait.get('coordinates', ())) > 2:
    panels = {'': partial(clients.client_map, clients.client_points(portrait))}
    title = _title(frames, 'local models')
    figures['clients_pca'] = _side_by_side(panels, title, (5.4, 4.0))
  if 'label_counts' in portrait and tables.task_of(frames.runs).has_classes:
    counts, truth = portrait['label_counts'], portrait.get('truth')
    names = portrait.get('truth_names'), portrait.get('class_names')
    frame = clients.class_counts(counts, truth, *names)
    shown = {config.get('config.partition') or '': frame}
    title = f'{_dataset(frames)}: classes of clients'
    figures['classes'] = partial(partitions, shown, title)
  if 'sheet_images' in portrait:
    title = _title(frames, 'typical clients')
    rows, columns = portrait['sheet_images'].shape[1:3]
    size = (4.2, 0.7 + 4.0 * rows / columns)
    figures['sheets'] = _side_by_side(_sheets(portrait), title, size, across=2)
  return figures


def figures_of_methods(comparison: Comparison) -> Figures:
  """Figures of methods over seeds that there are data for."""
  frames, differences = comparison.frames, comparison.differences
  figures = _curves(frames)
  if len(differences):
    several = differences['low'].notna().any()
    subtitle = '95 % intervals; filled: p < 0.05' if several else 'one seed'
    size = (5.0, 0.8 + 0.32 * len(differences))
    forest: Panels = {'': partial(lines.differences, differences)}
    figures['differences'] = _side_by_side(forest, _title(frames, subtitle), size)
  return figures


def _side_by_side(
  panels: Mapping[str, Callable[..., Axes]],
  title: str,
  size: tuple[float, float] = (4.2, 3.6),
  legend: bool = False,
  bar: str = '',
  across: int = 3,
  heights: tuple[int, ...] = (1,),
) -> Callable[[], Figure]:
  """Draws panels of some inches; `bar` labels a color bar.

  A panel draws into its axes, which have `heights` one below the other.
  """

  def draw() -> Figure:
    down = -(-len(panels) // across)
    row = -(-len(panels) // down)
    style: dict[str, Any] = {'layout': 'constrained', 'height_ratios': heights * down}
    with plt.rc_context(STYLE):
      figure, axes = plt.subplots(len(heights) * down, row, squeeze=False, **style)
      figure.set_size_inches(row * size[0], 0.3 + down * size[1] + 0.4 * legend)
      axes = axes.reshape(down, -1, row).swapaxes(1, 2).reshape(down * row, -1)
      for ax in axes[len(panels) :].flat:
        ax.axis('off')
      for own, (name, draw_panel) in zip(axes, panels.items(), strict=False):
        ax = draw_panel(*own)
        ax.set_title('\n'.join(filter(None, [name, ax.get_title()])))
      width = int(_LETTERS * figure.get_figwidth())
      lines = [textwrap.fill(line, width) for line in title.splitlines()]
      figure.suptitle('\n'.join(lines), fontsize='medium')
      if bar:
        figure.colorbar(axes[0, 0].images[0], ax=axes, label=bar, fraction=0.03)
      if legend:
        legend_below(figure, axes[0, 0])
    return figure

  return draw


def _title(frames: Frames, subtitle: str = '') -> str:
  """Data and method, the number of seeds, and what a figure shows; default: bands."""
  runs, seeds = frames.runs, frames.runs['seed'].nunique()
  subtitle = subtitle or ('bands: one standard deviation' if seeds > 1 else 'one seed')
  parts = [_dataset(frames)]
  if runs['method'].nunique() == 1:
    parts.append(in_figure(str(runs['method'].iloc[0])))
  parts += ['honest clients'] * any(column.startswith('honest.') for column in runs)
  on = set(runs.get('config.evaluate_on', ()))
  parts += ['validation examples'] * ('validation' in on)
  parts += [f'{seeds} seeds'] * (seeds > 1)
  return f'{", ".join(filter(None, parts))}: {subtitle}'


def _dataset(frames: Frames) -> str:
  """The data set, files without their folders."""
  name = str(frames.runs.iloc[0].get('config.dataset') or '')
  return in_figure(re.sub(r'[^(,=\s]*/', '', name))


def _curves(frames: Frames) -> Figures:
  """Curves of deployed and fine-tuned models over rounds and costs; Eq. 6 of a run."""
  rounds, runs, figures = frames.rounds, frames.runs, Figures()
  recorded = list(rounds['metric'].unique())
  scores = [name for name in recorded if name.startswith('deployed.')]
  column = scores[0].partition('.')[2] if scores else ''
  honest = 'honest.' * any(name.startswith('honest.') for name in recorded)
  metrics = {title: f'{honest}{kind}.{column}' for kind, title in _KINDS.items()}
  for over, name in _OVER.items():
    shown = dict(metrics)
    if over == 'round' and len(runs) == 1 and 'objective' in recorded:
      shown['Eq. 6'] = 'objective'
    draw = partial(lines.curves, rounds, over=over)
    panels = {title: partial(draw, metric=metric) for title, metric in shown.items()}
    if over == 'round' or rounds['value'][rounds['metric'] == over].any():
      named = runs['method'].nunique() > 1
      figures[name] = _side_by_side(panels, _title(frames), legend=named)
  return figures


def partitions(counts: Mapping[str, pd.DataFrame], title: str = '') -> Figure:
  """Draws partitions side by side: name -> `class_counts` of its clients."""
  panels = {in_figure(n): partial(clients.partition, x) for n, x in counts.items()}
  style: dict[str, Any] = {'bar': "Share of a client's examples", 'heights': (2, 1)}
  return _side_by_side(panels, in_figure(title, 100), (3.4, 4.4), **style)()


def _sheets(portrait: Portrait) -> Panels:
  """Images of the most typical clients of each cluster (Fig. 5)."""
  truth = clients.true_clusters(portrait.get('truth'), portrait.get('truth_names'))
  panels: Panels = {}
  for k, group in images.typical_images(portrait).groupby('cluster'):
    members = portrait['assignment'] == k
    title = f'cluster {k}: {members.sum()} clients'
    if truth is not None:
      counts = pd.Series(truth[members]).value_counts().loc[lambda n: n > 0]
      parts = [f'{n} of {in_figure(name)}' for name, n in counts.head(3).items()]
      others = [f'{counts[3:].sum()} others'] * (len(counts) > 3)
      title += '\n' + textwrap.fill(', '.join([*parts, *others]), 50)
    panels[title] = partial(images.sheet, group)
  return panels


def sweep_figure(frames: Frames, flag: str) -> Figure:
  """Draws the deployed metric, and ARI if it is known, over the values of a flag."""
  runs, panels = frames.runs, Panels()
  panels['Deployed models'] = partial(lines.sweep, runs, flag=flag)
  if 'clusters.ari' in runs and runs['clusters.ari'].notna().any():
    panels['Clusters'] = partial(lines.sweep, runs, flag=flag, column='clusters.ari')
  return _side_by_side(panels, _title(frames), legend=True)()
