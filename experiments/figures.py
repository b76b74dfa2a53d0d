r"""Draws the figures of runs from their workdirs, and partitions before any run.

  fesem-figures WORKDIR [WORKDIR ...]
  fesem-figures runs/table/fesem*/seed0 runs/table/fed_avg/seed0 --output=plots
  fesem-figures runs/table --style=paper --spread=deviation
  fesem-figures --partitions=iid,dirichlet,rotated+dirichlet --dataset=digits \
      --num_clients=40 --output=partitions.png
  fesem-figures --ranks=runs/digits,runs/femnist,runs/cifar --output=ranks.png

Each finished run gets its figures in WORKDIR/plots/; several are also drawn into one,
in --output. The workdir of a comparison gets those of its methods over seeds.
"""

import pathlib

import numpy as np
from absl import flags

from fesem_jax import data, tasks
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.class_names import class_names
from fesem_jax.data.label_skew import label_counts, label_skew
from fesem_jax.data.partitions.kinds import OF
from fesem_jax.run.results import metrics_file
from fesem_jax.tasks import TASKS
from fesem_jax.utils import progress_lines
from fesem_jax.utils.errors import UserError, check

from . import flags as experiment_flags
from . import methods
from .start import start


def draw_partitions(names: list[str], output: pathlib.Path) -> None:
  """Draws the named partitions of --dataset; prints a line on each."""
  from fesem_jax import plots  # Raises UserError without matplotlib.

  f = flags.FLAGS
  chosen = experiment_flags.data_choice()
  dataset = chosen['dataset']
  panels = {}
  for name in names:
    with progress_lines.shown(True, f'loading {dataset}, {name}'):
      given = {
        option: value
        for option, value in (chosen | {'partition': name}).items()
        if option not in OF or set(OF[option]) & set(name.split('+'))
      }
      train, _ = data.load(given.pop('dataset'), data_dir=f.data_dir, **given)
    counts, sizes = label_counts(train), np.asarray(train.sizes())
    info = train.info
    panels[name] = plots.DealtClients(
      counts, info.clusters, info.cluster_names, images_of_clusters(train)
    )
    line = (
      f'{name}: {train.num_clients} clients of {sizes.min()} to {sizes.max()} training '
      f'examples (median {np.median(sizes):g})'
    )
    if TASKS[train.task].has_classes:
      classes = np.median((counts > 0).sum(axis=1))
      line += (
        f', {classes:g} classes at the median, label skew {label_skew(counts):.3f}'
      )
    print(line)
  figure = plots.compared_partitions(
    panels,
    f'{dataset}: clients by partition',
    class_names(dataset, counts.shape[1], info.class_names),
  )
  _print_paths(plots.save(figure, output))


def images_of_clusters(train: FederatedData) -> np.ndarray | None:
  """An image of each true cluster, of one class where all have it.

  Returns [G, H, W] or [G, H, W, C], clusters in ascending order; None without clusters,
  or where examples are no images.
  """
  clusters = train.info.clusters
  if clusters is None or len(train.example_shape) not in (2, 3):
    return None
  images, wanted = [], np.nan  # In no class.
  if TASKS[train.task].has_classes and train.y.ndim == 1:
    wanted = int(np.bincount(train.y).argmax())
  for cluster in np.unique(clusters):
    held = [train.client(int(i)) for i in np.flatnonzero(clusters == cluster)]
    of_class = [x[y == wanted][0] for x, y in held if (y == wanted).any()]
    images.append((of_class or [x[0] for x, y in held if len(y)])[0])
  return np.stack(images)


def draw_runs(workdirs: list[str], out: pathlib.Path) -> None:
  """Draws finished and running runs."""
  from fesem_jax import plots  # Raises UserError without matplotlib.
  from fesem_jax.plots.runs import OVER

  compared = [name for name in workdirs if not _is_run(name)]
  for name in compared:
    _print_paths(draw_comparison(pathlib.Path(name)))
  runs = [plots.PlottedRun(folder) for folder in workdirs if folder not in compared]
  with progress_lines.shown(True, 'drawing'):
    written = [path for run in runs for path in plots.draw_run(run)]
  if len(runs) > 1:
    written += plots.save(plots.convergence(runs), out / 'convergence')
    for over, (_, file) in OVER.items():
      if any(run.until(over) for run in runs):
        written += plots.save(plots.convergence(runs, over), out / file)
  _print_paths(written)


def _is_run(workdir: str) -> bool:
  """Tells if a workdir is that of a run, and not of a comparison."""
  return not (pathlib.Path(workdir) / 'table.json').is_file()


def draw_comparison(workdir: pathlib.Path) -> list[pathlib.Path]:
  """Draws the figures of a comparison over seeds again, with --style and --spread.

  Runs are those of the table's seeds. Returns their files. Raises `UserError` if the
  workdir has no finished runs.
  """
  from fesem_jax import plots  # Raises UserError without matplotlib.

  table = metrics_file.read_object(workdir / 'table.json') or {}
  runs = {}
  for row in table.get('methods', []):
    folder = workdir / methods.folder_of(row['method'])
    folders = [folder / f'seed{seed}' for seed in table['seeds']]
    finished = [f for f in folders if (f / 'summary.json').is_file()]
    if finished:
      runs[row['method']] = [plots.PlottedRun(f, row['method']) for f in finished]
  if not runs or 'differences' not in table:
    raise UserError(f'{workdir} has no finished runs of fesem-compare.')
  with progress_lines.shown(True, 'drawing'):
    return plots.draw_comparison(
      runs, table['differences'], workdir / 'plots', flags.FLAGS.spread
    )


def draw_ranks(workdirs: list[str], output: pathlib.Path) -> None:
  """Draws the ranks of methods in several comparisons, each of a data set.

  Methods count that all have, but the oracle. Raises `UserError` on what is no
  comparison, and if tables show figures of other rounds or examples.
  """
  from fesem_jax import plots  # Raises UserError without matplotlib.

  scores: dict[str, dict[str, float]] = {}
  kinds: dict[tuple[str, bool], str] = {}
  for name in workdirs:
    table = metrics_file.read_object(pathlib.Path(name) / 'table.json')
    if not table or not table.get('methods'):
      raise UserError(f'ranks: {name} has no table of fesem-compare')
    scores[name] = {}
    on_validation = any(row.get('evaluated_on') for row in table['methods'])
    kinds.setdefault((table.get('report', 'last'), on_validation), name)
    oracle = (table.get('gaps') or {}).get('reference')
    for row in table['methods']:
      if row['method'] == oracle:
        continue
      of = tasks.of(row).primary
      of_honest = row.get(f'honest_deployed_micro_{of.name}')
      mean, _ = of_honest or row.get(f'deployed_micro_{of.name}') or (None, None)
      if mean is not None:
        scores[name][row['method']] = of.better(mean)
  check(len(kinds) < 2, 'ranks: workdirs differ in report or evaluate_on')
  common = [
    m for m in next(iter(scores.values())) if all(m in s for s in scores.values())
  ]
  left_out = sorted({m for own in scores.values() for m in own} - set(common))
  if left_out:
    print(f'Not in every comparison, and left out: {", ".join(left_out)}.')
  ranked = {name: {m: own[m] for m in common} for name, own in scores.items()}
  _print_paths(plots.save(plots.critical_difference(ranked), output))


def _print_paths(written: list[pathlib.Path]) -> None:
  pdf = any(path.suffix == '.pdf' for path in written)
  others = '.svg and .pdf' if pdf else '.svg'
  for path in written:
    if path.suffix == '.png':
      print(f'{path} (and {others})')


def main(argv: list[str]) -> None:
  f = flags.FLAGS
  if f.style != 'page':
    from fesem_jax import plots  # Raises UserError without matplotlib.

    plots.use_style(f.style)
  if f.partitions:
    draw_partitions(f.partitions, pathlib.Path(f.output or 'partitions.png'))
  elif f.ranks:
    draw_ranks(f.ranks, pathlib.Path(f.output or 'ranks.png'))
  elif len(argv) < 2:
    raise UserError('workdir: name one, or partitions or ranks to draw')
  else:
    draw_runs(argv[1:], pathlib.Path(f.output or 'plots'))


if __name__ == '__main__':
  experiment_flags.define('data', 'partition')
  flags.adopt_module_key_flags(experiment_flags)
  flags.DEFINE_list(
    'partitions', [], 'Partitions to draw side by side, as --partition names them.'
  )
  flags.DEFINE_list(
    'ranks', [], 'Workdirs of comparisons, each of a data set, to rank methods over.'
  )
  flags.DEFINE_string(
    'output',
    '',
    'Folder of the figures of several runs, by default plots; or file of that of '
    '--partitions or --ranks, by default partitions.png or ranks.png, beside which '
    '.svg goes.',
  )
  flags.DEFINE_enum(
    'spread',
    'interval',
    ['interval', 'deviation', 'all'],
    'What the curves of a comparison show beside their mean over seeds: its 95 % '
    'interval, the standard deviation, or all seeds.',
  )
  flags.DEFINE_enum(
    'style',
    'page',
    ['page', 'paper', 'talk'],
    'Fonts and sizes: paper has 8 points at the width of one or two columns, talk '
    'larger fonts; both also write PDF.',
  )
  start(main)
