"""The page: its text, its data and its figures in one file."""

import base64
import gzip
import importlib.resources
import json
import pathlib
import string
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fesem_jax import tasks
from fesem_jax.analysis.report import comparison, library, markup, provenance
from fesem_jax.analysis.report.clients import clients
from fesem_jax.analysis.report.clusters import clusters
from fesem_jax.analysis.report.confusion import confusion
from fesem_jax.analysis.report.curves import curves
from fesem_jax.analysis.report.runs import ReportedRun, labels, read_runs
from fesem_jax.run.results import curves as reading_curves
from fesem_jax.tasks import Task
from fesem_jax.utils.atomic_files import write_atomically
from fesem_jax.utils.errors import check, path_of
from fesem_jax.utils.palette import PALETTE
from fesem_jax.utils.provenance import versions
from fesem_jax.utils.ranges import check_choice
from fesem_jax.utils.safe_files import reading

_TEMPLATES = importlib.resources.files(__package__) / 'templates'
_SCRIPTS = (
  'unpack.js',
  'charts.js',
  'curves.js',
  'clients.js',
  'clusters.js',
  'confusion.js',
  'page.js',
)


def write_report(
  workdirs: str | pathlib.Path | Sequence[str | pathlib.Path],
  output: str | pathlib.Path,
  reference: str = '',
  report: str = 'last',
  title: str = '',
) -> pathlib.Path:
  """Writes one HTML page of runs that opens in any browser, without a network.

  Args:
    workdirs: of one run or several, finished or not, or the folder of a comparison.
    output: file to write.
    reference: label of the method that others are compared with; by default that with
      the best deployed figure.
    report: the figures of the table: of the 'last' round, the 'best' one, or 'mean10',
      the mean of the last ten evaluations.
    title: of the page; by default it names the runs.

  Returns:
    `output`.

  Raises:
    UserError: if a folder holds no run, or the runs are of several tasks.
  """
  check_choice('report', report, tuple(reading_curves.REPORTS))
  given = workdirs if isinstance(workdirs, Iterable) else [workdirs]
  given = [workdirs] if isinstance(workdirs, str) else list(given)
  path = path_of('output', output)
  runs = read_runs([path_of('workdirs', folder) for folder in given])
  check(runs, 'workdirs: name at least one')
  # Not every entry that a page shows is looked at where files are read.
  with reading(f'A file of {", ".join(str(run.folder) for run in runs[:3])}'):
    text = _page(runs, reference, report, title or _title(runs))
  path.parent.mkdir(parents=True, exist_ok=True)
  write_atomically(path, text)
  return path


def _page(runs: Sequence[ReportedRun], reference: str, report: str, title: str) -> str:
  """The text of the file."""
  known = [run.task for run in runs if run.task is not None]
  task = known[0] if known else tasks.CLASSIFICATION
  parts = {
    'title': markup.escaped(title, 120),
    'what': markup.escaped(_what(runs, task)),
    'ran': provenance.what_ran(runs),
    'table': comparison.compared(runs, reference, report),
    'costs': provenance.costs(runs) or '<p>No run has finished.</p>',
    'version': markup.escaped(versions().get('fesem_jax')),
    'style': _template('page.css'),
    'script': '\n'.join(_template(name) for name in _SCRIPTS),
    'library': base64.b64encode(library.compressed()).decode(),
    'data': _packed(_data(runs, task)),
  }
  return string.Template(_template('page.html')).substitute(parts)


def _template(name: str) -> str:
  return (_TEMPLATES / name).read_text(encoding='utf-8')


def _title(runs: Sequence[ReportedRun]) -> str:
  """'fesem(4), seed 0' or 'digits: 3 methods'."""
  if len(runs) == 1:
    return runs[0].title
  names = dict.fromkeys(run.config.get('dataset') for run in runs)
  of = f'{next(iter(names))}: ' if len(names) == 1 and None not in names else ''
  methods = len(labels(runs))
  return f'{of}{methods} methods' if methods > 1 else f'{of}{runs[0].label}'


def _what(runs: Sequence[ReportedRun], task: Task) -> str:
  seeds = len({run.seed for run in runs})
  done = sum(run.summary is not None for run in runs)
  parts = [f'{len(runs)} run{"s" * (len(runs) > 1)}', task.name]
  if len(runs) > 1:
    parts.append(f'{seeds} seed{"s" * (seeds > 1)}')
  if done < len(runs):
    parts.append(f'{done} finished')
  return ', '.join(parts)


def _data(runs: Sequence[ReportedRun], task: Task) -> dict[str, Any]:
  """The data of the figures."""
  order = labels(runs)
  figures = [
    {
      'name': figure.name,
      'label': figure.label,
      'percent': figure.percent,
      'higher': figure.higher_is_better,
    }
    for figure in task.figures
  ]
  return {
    'palette': PALETTE,
    'figures': figures,
    'labels': order,
    'runs': [
      {'label': order.index(run.label), 'seed': run.seed, 'title': run.title}
      for run in runs
    ],
    'curves': curves(runs, task),
    'clients': clients(runs, task),
    'clusters': clusters(runs),
    'confusion': confusion(runs),
  }


def _packed(data: dict[str, Any]) -> str:
  """JSON, gzipped, in base 64: no name in it can end the element that holds it."""
  text = json.dumps(data, separators=(',', ':'), default=_plain, allow_nan=False)
  return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _plain(value: Any) -> Any:
  if isinstance(value, np.generic):
    return value.item()
  raise TypeError(f'{type(value).__name__} is not for a page.')
