"""The runs of a page, as their workdirs hold them."""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fesem_jax import tasks
from fesem_jax.run.results import metrics_file, saved_client_table
from fesem_jax.run.results.client_table import ClientTable
from fesem_jax.run.results.metrics_file import method_label
from fesem_jax.tasks import Task
from fesem_jax.utils.display import printable, text_of
from fesem_jax.utils.errors import UserError, check

_FILES = ('metrics.jsonl', 'config.json')
# How many folders lie between a folder that is given and its runs, at most.
_DEPTH = 4
# Of a comparison: runs that chose hyperparameters, on other examples.
_OTHERS = ('tune',)


@dataclasses.dataclass(frozen=True, eq=False)
class ReportedRun:
  """A run, finished or not."""

  folder: pathlib.Path  # its workdir
  label: str  # what the page calls its method
  seed: int | None  # None where it is not known
  config: dict[str, Any]  # what config.json holds; empty where there is none
  # What summary.json holds; None while the run goes on, or if it diverged.
  summary: dict[str, Any] | None
  history: list[dict[str, Any]]  # records of metrics.jsonl
  clients: ClientTable | None  # None where clients.csv is absent
  portrait: dict[str, np.ndarray]  # arrays of clients.npz; empty where there is none

  @property
  def task(self) -> Task | None:
    """The task of its models; None before anything was measured."""
    if self.summary is not None:
      return tasks.of(self.summary)
    measured = (r['deployed'] for r in self.history if 'deployed' in r)
    scores = next(measured, None)
    return None if scores is None else tasks.of_scores(scores)

  @property
  def title(self) -> str:
    """Method and seed."""
    return self.label if self.seed is None else f'{self.label}, seed {self.seed}'

  @property
  def status(self) -> str:
    """How far the run came."""
    last = self.history[-1]['round'] if self.history else 0
    if self.summary is not None:
      ended = self.summary.get('ended') or 'finished'
      why = '' if ended == 'finished' else f', ended: {printable(ended, 60)}'
      return f'{self.summary.get("rounds", last)} rounds{why}'
    planned = self.config.get('rounds')
    more = isinstance(planned, int) and planned > last
    of = f' of {planned}' if more else ''
    return f'not finished: round {last}{of}'


class _RunFolder(NamedTuple):
  folder: pathlib.Path
  label: str  # of the folders of a comparison; '' elsewhere


def read_runs(workdirs: Sequence[pathlib.Path]) -> list[ReportedRun]:
  """The runs of workdirs, each of a single run or of a comparison.

  They are in the order of the workdirs, those of a comparison in the order of its
  table, then by seed. Raises `UserError` if a folder holds no run, a file of it is
  damaged, or the runs are of several tasks.
  """
  folders = [
    each for folder in workdirs for each in _run_folders(folder, len(workdirs) > 1)
  ]
  unique = list({each.folder.resolve(): each for each in folders}.values())
  runs = _named_apart([_read(each) for each in unique])
  first = set[str]()
  for run in runs:
    if run.task is not None:
      first.add(run.task.name)
  if len(first) > 1:
    raise UserError(f'workdirs: runs are of several tasks, {", ".join(first)}')
  return runs


def _run_folders(folder: pathlib.Path, several: bool) -> list[_RunFolder]:
  if _holds_run(folder):
    return [_RunFolder(folder, '')]
  table = metrics_file.read_object(folder / 'table.json') or {}
  order = [row['method'] for row in table.get('methods', [])]
  inner = list(_below(folder, _DEPTH))
  inner.sort(key=lambda run: _place(run.relative_to(folder).parts, order))
  check(inner, f'{folder}: holds no run; name a folder with a metrics.jsonl')
  folders = []
  for run in inner:
    *above, last = run.relative_to(folder).parts
    label = ', '.join(reversed(above)) if last.startswith('seed') else ''
    if label and several:
      label = f'{label}, {folder.name}'
    folders.append(_RunFolder(run, label))
  return folders


def _holds_run(folder: pathlib.Path) -> bool:
  return any((folder / name).is_file() for name in _FILES)


def _below(folder: pathlib.Path, depth: int) -> Iterator[pathlib.Path]:
  """Workdirs in a folder, of those that it may hold."""
  for inner in sorted(p for p in folder.iterdir() if p.is_dir()):
    if inner.name.startswith('.') or inner.name in _OTHERS:
      continue
    if _holds_run(inner):
      yield inner
    elif depth:
      yield from _below(inner, depth - 1)


def _place(parts: Sequence[str], order: Sequence[str]) -> tuple[Any, ...]:
  """Sorts the runs of a comparison as its table, then by seed."""
  *above, last = parts
  label = above[0] if above else ''
  digits = ''.join(filter(str.isdigit, last))
  at = order.index(label) if label in order else len(order)
  return at, above, int(digits or 0), last


def _read(run_folder: _RunFolder) -> ReportedRun:
  folder = run_folder.folder
  summary = metrics_file.read_summary(folder)
  config = metrics_file.read_config(folder) or {}
  rounds = (summary or {}).get('rounds')
  history = metrics_file.read_metrics(folder / 'metrics.jsonl', rounds)
  config = metrics_file.with_rounds_done(config, history)
  clients = portrait = None
  if summary is not None:
    clients = saved_client_table.read(folder)
    portrait = metrics_file.read_clients(folder)
  if clients is None or (portrait and len(portrait['names']) != len(clients.names)):
    portrait = {}
  seed = config.get('seed', (summary or {}).get('seed'))
  label = run_folder.label or method_label(config) or folder.name
  return ReportedRun(
    folder,
    printable(label, 80),
    seed,
    config,
    summary,
    history,
    clients,
    portrait or {},
  )


def _named_apart(runs: list[ReportedRun]) -> list[ReportedRun]:
  """Labels differ where configurations do, and where one seed is there twice."""
  named = []
  for run in runs:
    same = [other.config for other in runs if other.label == run.label]
    parts = [run.label]
    for name, value in run.config.items():
      # Data may be dealt anew for each seed.
      if name in ('seed', 'data_digest', 'own_code', 'code', 'versions'):
        continue
      if any(other.get(name) != value for other in same):
        parts.append(f'{name}={printable(text_of(value))}')
    named.append(dataclasses.replace(run, label=', '.join(parts)))
  for (label, seed), repeated in _repeated(named).items():
    for i in repeated:
      folder = printable(named[i].folder.name)
      named[i] = dataclasses.replace(named[i], label=f'{label}, {folder}', seed=seed)
  for (label, seed), repeated in _repeated(named).items():  # Of one name, too.
    for number, i in enumerate(repeated, 1):
      named[i] = dataclasses.replace(named[i], label=f'{label} ({number})', seed=seed)
  return named


def _repeated(runs: list[ReportedRun]) -> dict[tuple[str, int | None], list[int]]:
  """Label and seed of several runs -> their places."""
  places: dict[tuple[str, int | None], list[int]] = {}
  for i, run in enumerate(runs):
    places.setdefault((run.label, run.seed), []).append(i)
  return {key: same for key, same in places.items() if len(same) > 1}


def labels(runs: Sequence[ReportedRun]) -> list[str]:
  """The methods of runs, each once."""
  return list(dict.fromkeys(run.label for run in runs))


def first_of_each_method(runs: Sequence[ReportedRun]) -> list[int]:
  """Places of runs: the first of each method, then the second, and so on."""
  of_label: dict[str, list[int]] = {}
  for i, run in enumerate(runs):
    of_label.setdefault(run.label, []).append(i)
  turns = itertools.zip_longest(*of_label.values())
  return [i for turn in turns for i in turn if i is not None]
