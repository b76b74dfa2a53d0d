"""Figures of finished or running experiments, drawn from their workdirs.

Colors are Okabe and Ito's palette, which color-blind readers can tell apart;
clusters also differ by marker or position, never by color alone.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.atomic import replacing
from fesem_jax.data import skew
from fesem_jax.display import in_figure
from fesem_jax.errors import UserError
from fesem_jax.writer import read_clients, read_config, read_metrics

try:
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot as plt
  from matplotlib import ticker
  from matplotlib.figure import Figure
except ImportError as e:  # An optional dependency.
  raise UserError("Figures need matplotlib: pip install 'fesem_jax[plots]'.") from e

PALETTE = (
    '#0072B2', '#D55E00', '#009E73', '#CC79A7',
    '#E69F00', '#56B4E9', '#000000', '#999999',
)  # fmt: skip
_MARKERS = 'osD^vPX*<>hd'
_FEW = 4  # Runs whose legend fits beside their curves.
_STYLE: dict[Any, Any] = {
  'figure.dpi': 150,
  'font.size': 10,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.alpha': 0.3,
  'legend.frameon': False,
}


class Run:
  """What a workdir holds.

  Args:
    workdir: of `experiments.run` or `simulate`.

  Attributes:
    name: label for legends, e.g. "fesem(4)".
    config: what config.json holds; empty where there is none.
    dataset: its name, or the workdir's.
    history: records of metrics.jsonl.
    clients: arrays of clients.npz; empty while the run goes on.

  Raises:
    UserError: if the folder holds no run, or a file of it is damaged.
  """

  def __init__(self, workdir: str | pathlib.Path):
    self.workdir = pathlib.Path(workdir)
    self.history = read_metrics(self.workdir / 'metrics.jsonl')
    if not self.history:
      raise UserError(
        f'{workdir} holds no run: there is no metrics.jsonl with a round.'
      )
    config = read_config(self.workdir) or {}
    self.clients = read_clients(self.workdir)
    self.name = method_label(config) or self.workdir.name
    self.config = config
    self.dataset = config.get('dataset') or self.workdir.name

  def series(self, *path: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds and values of a metric, e.g. `series('finetuned', 'micro_f1')`."""
    rounds, values = [], []
    for record in self.history:
      value: Any = record
      for key in path:
        value = value.get(key) if isinstance(value, dict) else None
      if value is not None:
        rounds.append(record['round'])
        values.append(value)
    return np.array(rounds), np.array(values)


def method_label(config: dict[str, Any]) -> str:
  """The method's name as the paper writes it, e.g. "fesem(4)"."""
  name = config.get('algorithm') or ''
  clusters = config.get('num_clusters')
  return f'{name}({clusters})' if name and clusters else name


def _labels(runs: Sequence[Run]) -> list[str]:
  """Distinct labels: where methods repeat, what their configurations differ in."""

  def label(run: Run) -> str:
    same = [other.config for other in runs if other.name == run.name]
    differs = lambda k: any(c.get(k) != run.config[k] for c in same)
    details = {k: v for k, v in run.config.items() if differs(k)}
    return ', '.join(
      [
        in_figure(run.name),
        *(f'{in_figure(k)} {in_figure(v)}' for k, v in details.items()),
      ]
    )

  return [label(run) for run in runs]


def _color(i: int) -> str:
  return PALETTE[i % len(PALETTE)]


def convergence(runs: Sequence[Run]) -> Figure:
  """Accuracy and Eq. 6 over rounds, several runs in one figure (Fig. 3)."""
  clustered = any(len(run.series('objective')[0]) for run in runs)
  with plt.rc_context(_STYLE):
    figure, axes = plt.subplots(
      1, 2 + clustered, figsize=(4.2 * (2 + clustered), 3.6), squeeze=False
    )
    panels = [
      (('finetuned', 'micro_accuracy'), 'Fine-tuned micro accuracy (%)', 100),
      (('deployed', 'micro_accuracy'), 'Deployed micro accuracy (%)', 100),
      (('objective',), 'Eq. 6: mean squared distance to center', 1),
    ]
    for axis, (path, label, factor) in zip(axes[0], panels, strict=False):
      for i, (run, name) in enumerate(zip(runs, _labels(runs), strict=True)):
        rounds, values = run.series(*path)
        if len(rounds):
          axis.plot(
              rounds, factor * values, color=_color(i), label=name, markersize=4,
              marker=_MARKERS[i % len(_MARKERS)], markevery=max(1, len(rounds) // 12),
          )  # fmt: skip
      axis.set_xlabel('Round')
      axis.set_ylabel(label)
      axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if clustered:
      axes[0, 2].set_ylim(bottom=0)
    figure.tight_layout()
    if len(runs) <= _FEW:
      axes[0, 0].legend()
    else:  # They would hide the curves.
      figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc='upper center', bbox_to_anchor=(0.5, 0), ncols=7,
      )  # fmt: skip
  return figure


def map_of_clients(run: Run, method: str = 'pca') -> Figure:
  """Local models as points in 2-D, colored by cluster, marked by truth (Fig. 4).

  Args:
    run: finished, so that its workdir holds clients.npz.
    method: 'pca', or 't-sne' of the leading 50 principal components.
  """
  clients = run.clients
  points, sampled = clients['coordinates'], clients['sampled']
  if method == 't-sne':
    import threadpoolctl
    from sklearn.manifold import TSNE  # Slow to import.

    perplexity = min(30, max(2, (len(points) - 1) / 3))
    project = TSNE(perplexity=perplexity, init='pca', random_state=0).fit_transform
    # Its threads wait for each other at every step: beside other work on the same
    # cores that took 25 s instead of one.
    with threadpoolctl.threadpool_limits(1):
      points = project(points)
    xlabel, ylabel = 't-SNE 1', 't-SNE 2'
  else:
    shares = 100 * clients['variance']
    second = shares[1] if len(shares) > 1 else 0
    xlabel, ylabel = f'PC 1 ({shares[0]:.0f} %)', f'PC 2 ({second:.0f} %)'
    if points.shape[1] < 2:
      points = np.pad(points, ((0, 0), (0, 1)))
  cluster = clients['assignment'][sampled] if len(clients['assignment']) else None
  truth = clients['truth'][sampled] if len(clients['truth']) else None
  colored = np.zeros(len(points), int) if cluster is None else cluster
  marked = np.zeros(len(points), int) if truth is None else truth
  with plt.rc_context(_STYLE | {'axes.grid': False}):
    figure, axis = plt.subplots(figsize=(5.4, 4.2))
    for t, true_cluster in enumerate(np.unique(marked)):
      for c in np.unique(colored):
        mine = (marked == true_cluster) & (colored == c)
        axis.scatter(
          points[mine, 0],
          points[mine, 1],
          s=26,
          alpha=0.8,
          linewidths=0.3,
          edgecolors='white',
          color=_color(int(c)),
          marker=_MARKERS[t % len(_MARKERS)],
        )
    handles = []
    if cluster is not None:
      handles += [
        _handle(f'cluster {c} ({(clients["assignment"] == c).sum()})', _color(int(c)))
        for c in np.unique(cluster)
      ]
    if truth is not None:
      handles += [
        _handle(
          f'truth {in_figure(true_cluster)}', '#555555', _MARKERS[t % len(_MARKERS)]
        )
        for t, true_cluster in enumerate(np.unique(marked))
      ]
    if handles:
      axis.legend(handles=handles, loc='center left', bbox_to_anchor=(1, 0.5))
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_title(f'{in_figure(run.name)}: local models of {len(points)} clients')
  return figure


def _handle(label: str, color: str, marker: str = 's'):
  return matplotlib.lines.Line2D(
    [], [], linestyle='', marker=marker, color=color, label=label
  )


def sheets(run: Run) -> Figure:
  """Images of the most typical clients of each cluster (Fig. 5).

  One row for each client, nearest to the mean of its cluster first.
  """
  clients = run.clients
  images, who = clients['sheet_images'], clients['sheet_clients']
  if images.ndim == 5:
    images = images[..., None]
  num_clusters, rows, columns, height, _, channels = images.shape
  shown = images[..., 0] if channels == 1 else images
  # Gaps and missing images look like paper, black or white.
  there = shown.any(axis=(3, 4, *range(5, shown.ndim)))
  paper = np.median(shown[there]).astype(shown.dtype)
  shown = shown.copy()
  shown[~there] = paper
  span = 2  # Clusters side by side.
  with plt.rc_context(_STYLE | {'axes.grid': False}):
    across = min(span, num_clusters)
    down = -(-num_clusters // span)
    figure, axes = plt.subplots(
        down, across, figsize=(5.2 * across, 0.5 + 5.2 * rows / columns * down),
        squeeze=False, layout='constrained',
    )  # fmt: skip
    for k, axis in enumerate(axes.flat):
      axis.set_xticks([])
      axis.set_yticks([])
      if k >= num_clusters:
        axis.axis('off')
        continue
      gap = max(1, height // 10)
      tiles = np.pad(
        shown[k],
        [(0, 0), (0, 0), (gap, gap), (1, 1)] + [(0, 0)] * (shown[k].ndim - 4),
        constant_values=paper,
      )
      order = (0, 2, 1, 3, *range(4, tiles.ndim))
      sheet = tiles.transpose(order).reshape(
        rows * tiles.shape[2], columns * tiles.shape[3], *tiles.shape[4:]
      )
      axis.imshow(sheet, cmap='gray', interpolation='nearest')
      known = who[k] >= 0
      names = [in_figure(clients['names'][i], 20) if i >= 0 else '' for i in who[k]]
      axis.set_yticks((np.arange(rows) + 0.5) * tiles.shape[2], names, fontsize=7)
      axis.tick_params(length=0)
      for spine in axis.spines.values():
        spine.set(visible=True, color=_color(k), linewidth=3)
      size = int((clients['assignment'] == k).sum())
      title = f'cluster {k}: {size} clients'
      if len(clients['truth']) and known.any():
        members = clients['truth'][clients['assignment'] == k]
        values, counts = np.unique(members, return_counts=True)
        mix = ', '.join(
          f'{n} of truth {in_figure(v)}' for v, n in zip(values, counts, strict=True)
        )
        title += f' ({mix})'
      axis.set_title(title, fontsize=9, color=_color(k))
  return figure


def clusters_over_rounds(run: Run) -> Figure:
  """Cluster sizes, clients that moved, and agreement with the truth."""
  rounds, sizes = run.series('cluster_sizes')
  moved_rounds, moved = run.series('moved')
  ari_rounds, ari = run.series('ari')
  with plt.rc_context(_STYLE):
    figure, axes = plt.subplots(
      1, 2 + bool(len(ari)), figsize=(4.2 * (2 + bool(len(ari))), 3.4)
    )
    axes[0].stackplot(
        rounds, sizes.T, colors=[_color(k) for k in range(sizes.shape[1])],
        edgecolor='white',
    )  # fmt: skip
    axes[0].set(xlabel='Round', ylabel='Clients', ylim=(0, sizes.sum(axis=1).max()))
    axes[0].set_xlim(rounds[0], max(rounds[-1], 1))
    # Labels inside the bands say which is which without a legend.
    tops = np.cumsum(sizes[-1])
    for k, (top, size) in enumerate(zip(tops, sizes[-1], strict=True)):
      if size:
        axes[0].text(
            np.mean(rounds[[0, -1]]), top - size / 2, f'cluster {k}: {size}',
            color='white', ha='center', va='center', fontweight='bold',
        )  # fmt: skip
    axes[1].bar(moved_rounds, moved, color=PALETTE[0], width=0.8)
    axes[1].set(xlabel='Round', ylabel='Clients that moved')
    axes[1].set_ylim(0, max(1, 1.1 * moved.max(initial=0)))
    axes[1].yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if not moved.any():
      middle = {'transform': axes[1].transAxes, 'ha': 'center', 'va': 'center'}
      axes[1].text(0.5, 0.5, 'no client moved', **middle)
    if len(ari):
      axes[2].plot(ari_rounds, ari, color=PALETTE[1], label='ARI')
      nmi_rounds, nmi = run.series('nmi')
      axes[2].plot(nmi_rounds, nmi, color=PALETTE[0], linestyle='--', label='NMI')
      axes[2].set(xlabel='Round', ylabel='Agreement with truth')
      axes[2].set_ylim(min(-0.02, ari.min()), 1.03)
      axes[2].legend(loc='best')
    for axis in axes:
      axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    figure.suptitle(in_figure(run.name), y=1.0)
    figure.tight_layout()
  return figure


def classes_of_clients(
  counts: np.ndarray, title: str, cluster: np.ndarray | None = None
) -> Figure:
  """Examples of each class on each client, as stacked bars.

  Args:
    counts: [M, L] examples.
    title: heading.
    cluster: [M] true cluster or assignment; bars are sorted by it, if given, and
      then by the most frequent class. Of many clients an even sample is shown.
  """
  keys = (
    [counts.argmax(axis=1)] if cluster is None else [counts.argmax(axis=1), cluster]
  )
  order = np.lexsort(keys)
  shown = order[np.linspace(0, len(order) - 1, min(len(order), 80)).astype(int)]
  num_classes = counts.shape[1]
  colors: Any = PALETTE  # Of few classes; of many, a scale of colors.
  if num_classes > len(PALETTE):
    colors = plt.get_cmap('turbo')(np.linspace(0.02, 0.98, num_classes))
  with plt.rc_context(_STYLE | {'axes.grid': False}):
    figure, axis = plt.subplots(figsize=(8, 3.4), layout='constrained')
    edges, bottom = np.arange(len(shown) + 1) - 0.5, np.zeros(len(shown))
    for label in range(num_classes):
      top = bottom + counts[shown, label]
      axis.stairs(
          top, edges, baseline=bottom, fill=True, color=colors[label], label=str(label)
      )  # fmt: skip
      bottom = top
    if cluster is not None:
      for at in np.flatnonzero(np.diff(cluster[shown])):
        axis.axvline(at + 0.5, color='black', linewidth=1, linestyle=':')
    of_all = (
      f'{len(shown)} of {len(order)} clients'
      if len(shown) < len(order)
      else (f'{len(order)} clients')
    )
    axis.set(xlabel=of_all, ylabel='Training examples', title=in_figure(title, 80))
    axis.set_xlim(-0.5, len(shown) - 0.5)
    axis.set_xticks([])
    if num_classes <= 12:
      axis.legend(title='class', loc='center left', bbox_to_anchor=(1, 0.5))
    else:
      few = matplotlib.colors.ListedColormap(colors)
      norm = matplotlib.colors.BoundaryNorm(
        np.arange(num_classes + 1) - 0.5, num_classes
      )
      mappable = matplotlib.cm.ScalarMappable(norm, few)
      ticks = ticker.MaxNLocator(7, integer=True)
      scale = figure.colorbar(mappable, ax=axis, label='class', ticks=ticks)
      scale.ax.minorticks_off()
  return figure


def client_sizes(sizes: np.ndarray, title: str) -> Figure:
  """Histogram of the clients' numbers of examples [M]."""
  with plt.rc_context(_STYLE):
    figure, axis = plt.subplots(figsize=(5, 3.2), layout='constrained')
    axis.hist(sizes, bins='auto' if len(np.unique(sizes)) > 1 else 1, color=PALETTE[0])
    axis.axvline(np.median(sizes), color=PALETTE[1], linestyle='--')
    axis.set(
        xlabel='Examples (dashed: median)', ylabel='Clients', title=in_figure(title, 80)
    )  # fmt: skip
    axis.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  return figure


def save(figure: Figure, path: pathlib.Path) -> list[pathlib.Path]:
  """Writes `path` as PNG and SVG, closes the figure, returns both paths."""
  written = [path.with_suffix('.png'), path.with_suffix('.svg')]
  file = path.parent
  try:
    file.mkdir(parents=True, exist_ok=True)
    # The same figure gives the same file: no date, no random ids.
    with plt.rc_context({'svg.hashsalt': 'fesem_jax'}):
      for file in written:
        dated = {'Date': None} if file.suffix == '.svg' else None
        with replacing(file) as out:
          figure.savefig(
            out, format=file.suffix[1:], bbox_inches='tight', metadata=dated
          )
  except OSError as e:
    raise UserError(f'Cannot write {file}: {e.strerror}.') from e
  plt.close(figure)
  return written


def draw_run(run: Run) -> list[pathlib.Path]:
  """Draws every figure that the run has data for into `workdir/plots/`."""
  folder = run.workdir / 'plots'
  written = save(convergence([run]), folder / 'convergence')
  if len(run.series('cluster_sizes')[0]):
    written += save(clusters_over_rounds(run), folder / 'clusters')
  if len(run.clients.get('coordinates', ())) > 2:
    written += save(map_of_clients(run, 'pca'), folder / 'clients_pca')
    written += save(map_of_clients(run, 't-sne'), folder / 'clients_tsne')
  if 'label_counts' in run.clients:
    counts, truth = run.clients['label_counts'], run.clients['truth']
    by_class = classes_of_clients(
      counts,
      f'{run.dataset}, label skew {skew.label_skew(counts):.2f}',
      truth if len(truth) else None,
    )
    written += save(by_class, folder / 'classes')
  if 'sheet_images' in run.clients:
    written += save(sheets(run), folder / 'sheets')
  return written
