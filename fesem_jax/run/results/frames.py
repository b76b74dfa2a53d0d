"""Runs as three pandas frames, from their workdirs or from memory.

`runs` has a row a run: `run`, `method`, `seed`, `folder`, `status`, every entry of its
summary (nested names joined by dots, as `deployed.micro_accuracy`) and of its
configuration (`config.rounds`). `rounds` has a row a run, round and metric; `clients` a
row a run and client, see `client_table`.
"""

import collections
import functools
import glob
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fesem_jax.run.results import client_table, files
from fesem_jax.utils.errors import check

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

KEYS = ['run', 'method', 'seed']
# Folders of a comparison that hold no runs of its table.
_OTHERS = ('tune', 'plots', 'checkpoints')
_BYTES = ['bytes_down', 'bytes_up', 'start_bytes_down', 'start_bytes_up']


class Frames(NamedTuple):
  """Frames of some runs."""

  runs: 'DataFrame'
  rounds: 'DataFrame'
  clients: 'DataFrame'


class Recorded(NamedTuple):
  """The records of a run, in memory or in its workdir."""

  method: str  # label in tables
  seed: int
  config: dict[str, Any]
  summary: dict[str, Any] | None  # None while it goes on, or if it diverged
  rounds: 'DataFrame'  # of `rounds_of`
  clients: 'DataFrame | None'
  folder: str = ''  # its workdir
  diverged: bool = False

  @classmethod
  def of(
    cls,
    result: Any,
    method: str = '',
    seed: int = 0,
    config: dict[str, Any] | None = None,
    folder: str = '',
  ) -> 'Recorded':
    """The records of a `Result`; None is a run that diverged."""
    if result is None:
      none = rounds_of([])
      return cls(method, seed, config or {}, None, none, None, folder, diverged=True)
    record = result.summary, rounds_of(result.history), result.clients
    return cls(method, seed, config or {}, *record, folder)

  @property
  def status(self) -> str:
    """'finished', 'ended: WHY', 'going on' or 'diverged'."""
    if self.summary is None:
      return 'diverged' if self.diverged else 'going on'
    ended = self.summary.get('ended', 'finished')
    return ended if ended == 'finished' else f'ended: {ended}'


def read(folder: pathlib.Path, method: str = '') -> Recorded:
  """Reads a run, finished or not; `method` is its label, by default of its config."""
  paths = [folder / f'{name}.json' for name in ('config', 'summary')]
  paths += [folder / 'metrics.jsonl', folder / client_table.FILE]
  states = [path.stat() if path.exists() else None for path in paths]
  written = tuple(state and (state.st_mtime_ns, state.st_ino) for state in states)
  recorded = _read(folder.absolute(), written)
  return recorded._replace(method=method or recorded.method, folder=str(folder))


@functools.lru_cache(maxsize=1024)
def _read(folder: pathlib.Path, written: object) -> Recorded:
  """The run that a folder holds, read once after its files were `written`."""
  config, summary = (
    files.read_object(folder / f'{name}.json') for name in ('config', 'summary')
  )
  config, rounds = config or {}, summary['rounds'] if summary else None
  history = files.read_metrics(folder / 'metrics.jsonl', rounds)
  planned, done = config.get('rounds'), history[-1]['round'] if history else 0
  if isinstance(planned, int) and done > planned:  # The run went on.
    config |= {'rounds': done}
  clients = None if summary is None else client_table.read(folder)
  label, seed = method_label(config), (config | (summary or {})).get('seed', 0)
  name = label or folder.name
  return Recorded(name, seed, config, summary, rounds_of(history), clients)


def method_label(config: dict[str, Any]) -> str:
  """The name of a method with its number of clusters, e.g. 'fesem(4)'."""
  name, clusters = config.get('algorithm') or '', config.get('num_clusters')
  return f'{name}({clusters})' if name and clusters else name


def load_runs(*patterns: str | pathlib.Path) -> Frames:
  """Frames of runs, finished or not, from their workdirs.

  Args:
    *patterns: workdirs, comparisons (METHOD/seedN) or any folders above, with
      wildcards, as 'runs/*'.

  Raises:
    UserError: without any run, or on a damaged file.
  """
  runs = read_runs(*patterns)
  check(runs, f'{", ".join(map(str, patterns))}: holds no run')
  return joined(_named_apart(runs))


def read_runs(*patterns: str | pathlib.Path) -> list[Recorded]:
  """The runs of `load_runs`."""
  paths = [
    pathlib.Path(path)
    for pattern in patterns
    for path in sorted(glob.glob(str(pathlib.Path(pattern).expanduser())))
  ]
  folders = [(inner, path) for path in paths for inner in _run_folders(path)]
  unique = {folder.resolve(): (folder, above) for folder, above in folders}
  return [read(folder, _label(folder, above)) for folder, above in unique.values()]


def _run_folders(folder: pathlib.Path) -> Iterable[pathlib.Path]:
  """Workdirs of runs at a folder or below it."""
  if (folder / 'metrics.jsonl').is_file() or (folder / 'config.json').is_file():
    yield folder
  elif folder.is_dir():
    place = _places_in_table(folder)
    inside = sorted(folder.iterdir())
    for inner in sorted(inside, key=lambda path: place.get(path.name, len(place))):
      if inner.is_dir() and inner.name[0] != '.' and inner.name not in _OTHERS:
        yield from _run_folders(inner)


def _places_in_table(folder: pathlib.Path) -> dict[str, int]:
  """Folder of each method of a comparison -> its place in the table."""
  path = folder / 'table.json'
  rows = json.loads(path.read_text()) if path.is_file() else []
  return {row['method'].replace('/', '_'): i for i, row in enumerate(rows)}


def _label(folder: pathlib.Path, above: pathlib.Path) -> str:
  """The label of a run METHOD/seedN at a folder or below it; '' elsewhere."""
  is_of_seed = folder.name.startswith('seed') and folder != above
  return folder.parent.name if is_of_seed else ''


def _named_apart(runs: Sequence[Recorded]) -> list[Recorded]:
  """Labels of methods that have a seed twice name the folders, or the comparisons."""
  counts = collections.Counter((run.method, run.seed) for run in runs)
  repeated = {method for (method, _), count in counts.items() if count > 1}
  paths = [pathlib.Path(run.folder).resolve() for run in runs]
  above = [p.parent.parent if p.name.startswith('seed') else p for p in paths]
  common = os.path.commonpath(above)
  return [
    run._replace(method=f'{run.method}, {os.path.relpath(folder, common)}')
    if run.method in repeated
    else run
    for run, folder in zip(runs, above, strict=True)
  ]


def of_result(result: Any, config: dict[str, Any] | None = None) -> Frames:
  """Frames of one `Result` or `Run`."""
  label, seed = method_label(config or result.summary), result.summary.get('seed')
  return joined([Recorded.of(result, label or 'run', seed or 0, config)])


def joined(runs: Sequence[Recorded], order: Sequence[str] = ()) -> Frames:
  """Frames of runs, in the `order` of methods, then of seeds."""
  import pandas

  labels = list(dict.fromkeys([*order, *(run.method for run in runs)]))
  rows, rounds, clients = [], [], []
  for run in runs:
    name = f'{run.method}/seed{run.seed}'
    key: dict[str, Any] = dict(zip(KEYS, (name, run.method, run.seed), strict=True))
    row = key | {'folder': run.folder, 'status': run.status}
    rows.append(row | summary_row(run.summary or {}) | flat(run.config, 'config.'))
    rounds.append(run.rounds.assign(**key))
    if run.clients is not None:
      clients.append(run.clients.assign(**key))
  empty = pandas.DataFrame(columns=[*KEYS, 'client'])
  frames = (
    pandas.DataFrame(rows) if rows else empty,
    pandas.concat(rounds, ignore_index=True) if rounds else empty,
    pandas.concat(clients, ignore_index=True) if clients else empty,
  )
  return Frames(*(_sorted(frame, labels) for frame in frames))


def _sorted(frame: 'DataFrame', labels: Sequence[str]) -> 'DataFrame':
  import pandas

  columns = [*KEYS, *(name for name in frame.columns if name not in KEYS)]
  frame = frame[columns].assign(method=pandas.Categorical(frame['method'], labels))
  return frame.sort_values(['method', 'seed'], kind='stable', ignore_index=True)


def flat(
  record: dict[Any, Any], prefix: str = '', number_lists: bool = False
) -> dict[str, Any]:
  """Entries of nested dicts, and of lists if asked for, under names joined by dots."""
  entries: dict[str, Any] = {}
  for name, value in record.items():
    if number_lists and isinstance(value, list):
      value = dict(enumerate(value))
    if isinstance(value, dict):
      entries |= flat(value, f'{prefix}{name}.', number_lists)
    else:
      entries[f'{prefix}{name}'] = value
  return entries


def summary_row(summary: dict[str, Any]) -> dict[str, Any]:
  """The entries of a summary; `rounds_to.TARGET` are those of the deployed models."""
  row = flat(summary)
  targets = row.pop('rounds_to_target', None) or []
  return row | {f'rounds_to.{t["target"]:g}': t['deployed'] for t in targets}


def rounds_of(history: Sequence[dict[str, Any]]) -> 'DataFrame':
  """The numbers of rounds: `round`, `metric` and `value`, with totals until its end.

  Metrics are entries of the records, lists as `cluster_sizes.0`; and `total_bytes` of
  both ways, `total_seconds` and `total_simulated_seconds`.
  """
  import pandas

  rows = [flat(record, number_lists=True) for record in history]
  wide = pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=['round'])
  parts = [wide]
  done = wide[wide['round'] > 0]
  if {'bytes_down', 'bytes_up'} <= set(wide):
    is_counted = done[['bytes_down', 'bytes_up']].notna().all(axis=1).cummin()
    sent = done.reindex(columns=_BYTES).astype(float).fillna(0).sum(axis=1)
    parts.append(sent.cumsum()[is_counted].rename('total_bytes').to_frame())
  for name in ('seconds', 'simulated_seconds'):
    if name in wide:
      total = done[name].astype(float).cumsum()
      parts.append(total.rename(f'total_{name}').to_frame())
  long = pandas.concat(parts, axis=1).melt('round', var_name='metric')
  long['value'] = pandas.to_numeric(long['value'], errors='coerce')
  return long.dropna(subset='value').reset_index(drop=True)
