"""Writes one HTML page of runs, which opens in any browser without a network.

  fesem-report WORKDIR [WORKDIR ...] --output=report.html

A WORKDIR is that of a run, finished or not, or a folder of runs, as of fesem-compare.
"""

import pathlib

from absl import flags

from fesem_jax.analysis.report import write_report
from fesem_jax.run.results.curves import REPORTS
from fesem_jax.utils import progress_lines
from fesem_jax.utils.errors import UserError

from . import pages
from .start import start


def main(argv: list[str]) -> None:
  f = flags.FLAGS
  if len(argv) < 2:
    raise UserError('Name at least one workdir: fesem-report WORKDIR.')
  output = pathlib.Path(f.output)
  with progress_lines.shown():
    print(write_report(argv[1:], output, f.reference, f.report, f.title))


if __name__ == '__main__':
  flags.DEFINE_string('output', 'report.html', 'File to write.')
  pages.define_title()
  flags.DEFINE_string(
    'reference',
    '',
    'Method whose metrics are subtracted from those of the others, named as in the '
    'table; default: the method with the best deployed metric.',
  )
  flags.DEFINE_enum(
    'report',
    'last',
    list(REPORTS),
    'Figures of the table: of the last round, of the best one, or the mean of the last '
    'ten evaluations.',
  )
  start(main)
