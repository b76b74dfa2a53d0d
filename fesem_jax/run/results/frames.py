"""Runs as three pandas frames, from their workdirs or from memory.

`runs` has a row a run: `run`, `method`, `seed`, `folder`, `status`, every entry of its
summary (nested names joined by dots, as `deployed.micro_accuracy`) and of its
configuration (`config.rounds`). `rounds` has a row a run, round and metric; `clients` a
row a run and client, see `client_table`.
"""

import collections
import glob
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flax.traverse_util import flatten_dict

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
  history: list[dict[str, Any]]  # records of rounds
  clients: 'DataFrame | None'
  folder: str = ''  # its workdir
  diverged: bool = False

  @classmethod
  def of(
    cls, result: Any, method: str, seed: int, config: dict[str, Any], folder: str = ''
  ) -> 'Recorded':
    """The records of a `Result`; None is a run that diverged."""
    if result is None:
      return cls(method, seed, config, None, [], None, folder, diverged=True)
    records = result.summary, result.history, result.clients
    return cls(method, seed, config, *records, folder)

  @property
  def status(self) -> str:
    """'finished', 'ended: WHY', 'going on' or 'diverged'."""
    if self.summary is None:
      return 'diverged' if self.diverged else 'going on'
    ended = self.summary.get('ended', 'finished')
    return ended if ended == 'finished' else f'ended: {ended}'


def read(folder: pathlib.Path, method: str = '') -> Recorded:
  """Reads a run, finished or not; `method` is its label, by default of its config."""
  config, summary = (
    files.read_object(folder / f'{name}.json') or {} for name in ('config', 'summary')
  )
  history = files.read_metrics(folder / 'metrics.jsonl', summary.get('rounds'))
  planned, done = config.get('rounds'), history[-1]['round'] if history else 0
  if isinstance(planned, int) and done > planned:  # The run went on.
    config['rounds'] = done
  label, seed = method or method_label(config), (config | summary).get('seed', 0)
  clients = client_table.read(folder) if summary else None
  records = summary or None, history, clients
  return Recorded(label or folder.name, seed, config, *records, str(folder))


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
  runs = dict[pathlib.Path, Recorded]()
  for pattern in patterns:
    for path in sorted(glob.glob(str(pathlib.Path(pattern).expanduser()))):
      for folder in _run_folders(pathlib.Path(path)):
        is_of_seed = folder.name.startswith('seed') and str(folder) != path
        label = folder.parent.name if is_of_seed else ''
        runs.setdefault(folder.resolve(), read(folder, label))
  return list(runs.values())


def _run_folders(folder: pathlib.Path) -> Iterable[pathlib.Path]:
  """Workdirs of runs at a folder or below it, in the order of a table there."""
  if (folder / 'metrics.jsonl').is_file() or (folder / 'config.json').is_file():
    yield folder
  elif folder.is_dir():
    rows = files.read_object(folder / 'table.json', list) or []
    methods = [row['method'].replace('/', '_') for row in rows]
    inside = sorted(path.name for path in folder.iterdir() if path.is_dir())
    for name in dict.fromkeys([*(m for m in methods if m in inside), *inside]):
      if name[0] != '.' and name not in _OTHERS:
        yield from _run_folders(folder / name)


def _named_apart(runs: Sequence[Recorded]) -> list[Recorded]:
  """Labels of methods that have a seed twice name the folders, or the comparisons."""
  counts = collections.Counter((run.method, run.seed) for run in runs)
  repeated = {method for (method, _), count in counts.items() if count > 1}

  def label(run: Recorded) -> str:
    path = pathlib.Path(run.folder)
    above = path.parent.parent if path.name.startswith('seed') else path
    return f'{run.method}, {above}' if run.method in repeated else run.method

  return [run._replace(method=label(run)) for run in runs]


def joined(runs: Sequence[Recorded], order: Sequence[str] = ()) -> Frames:
  """Frames of runs, in the `order` of methods, then of seeds."""
  import pandas

  labels = list(dict.fromkeys([*order, *(run.method for run in runs)]))
  rows, rounds, clients = [], [], []
  for run in runs:
    name = f'{run.method}/seed{run.seed}'
    key: dict[str, Any] = dict(zip(KEYS, (name, run.method, run.seed), strict=True))
    row = key | {'folder': run.folder, 'status': run.status}
    summary = dict(run.summary or {})
    for target in summary.pop('rounds_to_target', None) or []:
      row[f'rounds_to.{target["target"]:g}'] = target['deployed']
    rows.append(row | flatten_dict(summary | {'config': run.config}, sep='.'))
    rounds.append(rounds_of(run.history).assign(**key))
    if run.clients is not None:
      clients.append(run.clients.assign(**key))
  empty = pandas.DataFrame(columns=[*KEYS, 'client'])
  frames = (
    pandas.DataFrame(rows) if rows else empty,
    pandas.concat(rounds, ignore_index=True) if rounds else empty,
    pandas.concat(clients, ignore_index=True) if clients else empty,
  )
  made = []
  for frame in frames:
    frame = frame[[*KEYS, *frame.columns.drop(KEYS)]]
    frame = frame.assign(method=pandas.Categorical(frame['method'], labels))
    made.append(frame.sort_values(KEYS[1:], kind='stable', ignore_index=True))
  return Frames(*made)


def rounds_of(history: Sequence[dict[str, Any]]) -> 'DataFrame':
  """The numbers of rounds: `round`, `metric` and `value`, with totals until its end.

  Metrics are entries of the records, lists as `cluster_sizes.0`; and `total_bytes` of
  both ways, `total_seconds` and `total_simulated_seconds`.
  """
  import pandas

  rows = [
    flatten_dict({n: _numbered(x) for n, x in record.items()}, sep='.')
    for record in history
  ]
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


def _numbered(value: Any) -> Any:
  return {str(i): x for i, x in enumerate(value)} if isinstance(value, list) else value
