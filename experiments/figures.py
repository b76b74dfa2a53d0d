"""Draws the figures of one or several runs from their workdirs.

  fesem-figures WORKDIR [WORKDIR ...]

Each finished run gets, in WORKDIR/plots/ as PNG and SVG: convergence (Fig. 3 of
the paper), clients_pca and clients_tsne (Fig. 4), sheets (Fig. 5) and clusters.
Several runs are also drawn into one convergence figure, in --out.
"""

import pathlib

from absl import flags

from fesem_jax.utils import progress_lines
from fesem_jax.utils.errors import UserError

from .start import start


def main(argv: list[str]) -> None:
  from fesem_jax import plots  # Raises UserError without matplotlib.

  if len(argv) < 2:
    raise UserError('Name at least one workdir: fesem-figures WORKDIR.')
  runs = [plots.PlottedRun(folder) for folder in argv[1:]]
  with progress_lines.shown(None), progress_lines.waiting_for('drawing'):
    written = [path for run in runs for path in plots.draw_run(run)]
  if len(runs) > 1:
    out = pathlib.Path(flags.FLAGS.out)
    written += plots.save(plots.convergence(runs), out / 'convergence')
  for path in written:
    if path.suffix == '.png':
      print(f'{path} (and .svg)')
  for run in runs:
    if not run.clients:
      print(f'{run.workdir} is not finished: the figures of its clients come later.')


if __name__ == '__main__':
  flags.DEFINE_string('out', 'plots', 'Folder of the figure that holds several runs.')
  start(main)
