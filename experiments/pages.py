"""Figures, tables and report.html of runs and comparisons."""

import contextlib
import pathlib
import threading

from absl import flags

from fesem_jax.analysis import report
from fesem_jax.analysis.comparison import Comparison
from fesem_jax.run import programs
from fesem_jax.utils.display import text_of
from fesem_jax.utils.progress_lines import shown, waiting_for

from . import flags as experiment_flags


def prepare() -> None:
  """Imports what draws the page, on another thread once programs are compiled."""

  def load() -> None:
    programs.begun.wait()
    with contextlib.suppress(ImportError):
      from fesem_jax.analysis.report.content import library

      library()

  if flags.FLAGS.report_html:
    threading.Thread(target=load, daemon=True).start()


def written(workdir: pathlib.Path, reference: str = '') -> str:
  """Writes the page of a workdir; a line that names it, or says why there is none."""
  if not flags.FLAGS.report_html:
    return f'Report: fesem-report {workdir} writes it.'
  path = workdir / 'report.html'
  try:
    with shown(experiment_flags.progress()), waiting_for('writing the report'):
      f = flags.FLAGS
      report.write_report(workdir, path, reference, f.report)
  except ImportError as e:  # A page is optional, the results are not.
    return f'No report: {e!s}'
  return f'Report: {path}'


def draw(comparison: Comparison, workdir: pathlib.Path, sweep: str = '') -> str:
  """Draws a comparison, and a sweep of a flag; a line on where the figures are."""
  try:
    from fesem_jax import plots
  except ImportError as e:  # Figures are optional, the table is not.
    return str(e)
  with shown(experiment_flags.progress()), waiting_for('drawing figures'):
    plots.draw_comparison(comparison, workdir / 'plots')
    if sweep:
      flag = sweep.partition(':')[0]
      figure = plots.sweep_figure(comparison.frames, flag)
      plots.save(figure, workdir / 'plots' / 'sweep')
  return f'Figures: {workdir}/plots'


def printed(comparison: Comparison) -> str:
  """The table, or its first columns, and tuned values at the edge of their grid."""
  table = comparison.table
  text = str(table)
  if text.count('\n') > 30 + len(table.cells):
    columns, *_ = text.split('\n\n')
    text = '\n'.join([columns, *table.notes, 'Further columns are in table.md.'])
  edges = [
    f'{label} {name}={text_of(choice.values[name])}'
    for label, choice in comparison.choices.items()
    for name in choice.at_edge
  ]
  return text + (f'\nAt the edge of the grid: {", ".join(edges)}.' if edges else '')
