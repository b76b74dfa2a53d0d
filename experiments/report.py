"""Writes one HTML page of runs, which opens in any browser without a network.

  fesem-report WORKDIR [WORKDIR ...] --output=report.html
  fesem-report runs/table --figures=figures --format=pdf

WORKDIR is the folder of a run, finished or not, or of fesem-compare.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from absl import flags

from fesem_jax.analysis.comparison import Comparison
from fesem_jax.analysis.report import write_report
from fesem_jax.run.results.frames import load_runs
from fesem_jax.utils.errors import check
from fesem_jax.utils.progress_lines import shown, waiting_for
from fesem_jax.utils.ranges import check_choice

from . import flags as experiment_flags
from .options import Names
from .start import start


@dataclasses.dataclass(frozen=True)
class Report:
  """A page of runs.

  Attributes:
    output: File of the page; default: report.html, or none with --figures.
    figures: Folder of figures to draw too; of several workdirs, a folder each.
    format: Formats of --figures: pdf, png, svg.
    reference: Method that others are compared with; default: the best one.
  """

  output: str = ''
  figures: str = ''
  format: Names = ('png', 'svg')
  reference: str = ''


def draw(
  workdir: pathlib.Path, folder: pathlib.Path, formats: Sequence[str]
) -> list[pathlib.Path]:
  """Draws the figures of a run, or of a comparison over its seeds; their files."""
  from fesem_jax import plots  # Raises UserError without matplotlib.

  f = flags.FLAGS
  frames = load_runs(workdir)
  comparison = Comparison(frames, reference=f.reference, report=f.report)
  if len(comparison.runs) == 1:
    return plots.draw_run(comparison.runs.iloc[0]['folder'], folder, formats)
  return plots.draw_comparison(comparison, folder, formats)


def main(argv: list[str]) -> None:
  f = flags.FLAGS
  workdirs = [pathlib.Path(name) for name in argv[1:]]
  check(workdirs, 'workdir: missing; name one, as fesem-report WORKDIR')
  for kind in f.format:
    check_choice('format', kind, ('pdf', 'png', 'svg'))
  if f.output or not f.figures:
    output = pathlib.Path(f.output or 'report.html')
    with shown():
      print(write_report(argv[1:], output, f.reference, f.report))
  for workdir in workdirs if f.figures else []:
    folder = pathlib.Path(f.figures, workdir.name if len(workdirs) > 1 else '')
    with shown(), waiting_for('drawing'):
      written = draw(workdir, folder, f.format)
    print(*written, sep='\n')


if __name__ == '__main__':
  experiment_flags.define('report', Report)
  start(main)
