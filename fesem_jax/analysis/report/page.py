"""Writes the page of runs."""

import importlib.resources
import pathlib
from collections.abc import Sequence

from fesem_jax.analysis.comparison import Comparison
from fesem_jax.evaluation.curves import REPORTS
from fesem_jax.run.results.frames import load_runs
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice

_TEMPLATE = importlib.resources.files(__package__) / 'page.html'


def write_report(
  workdirs: str | pathlib.Path | Sequence[str | pathlib.Path],
  output: str | pathlib.Path,
  reference: str = '',
  report: str = 'last',
) -> pathlib.Path:
  """Writes one HTML page of runs that opens in any browser, without a network.

  Args:
    workdirs: of one run or several, finished or not, or the folder of a comparison.
    output: file to write, which is returned.
    reference: method that others are compared with; by default the best one.
    report: the metrics of the table: of the 'last' round, the 'best' one, or 'mean10',
      the mean of the last ten evaluations.

  Raises:
    UserError: if a folder holds no run, or the runs are of several tasks.
  """
  import jinja2  # An optional dependency.

  # Draws, which takes seconds to import.
  from fesem_jax.analysis.report.content import content

  check_choice('report', report, tuple(REPORTS))
  if isinstance(workdirs, str) or not isinstance(workdirs, Sequence):
    workdirs = [workdirs]
  folders = [pathlib.Path(folder) for folder in workdirs]
  check(folders, 'workdirs: name at least one')
  path = pathlib.Path(output)
  comparison = Comparison(load_runs(*folders), reference=reference, report=report)
  environment = jinja2.Environment(autoescape=True, trim_blocks=True)
  template = environment.from_string(_TEMPLATE.read_text(encoding='utf-8'))
  text = template.render(content(comparison))
  path.parent.mkdir(parents=True, exist_ok=True)
  write_atomically(path, text.encode('utf-8', 'replace').decode())
  return path
