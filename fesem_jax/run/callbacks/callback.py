"""Callbacks of a run, the event that they are called with, and options of a run."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.data.splits import Phase
from fesem_jax.run.results.deployed_models import DeployedModels
from fesem_jax.run.results.records import Record
from fesem_jax.run.results.result import Result
from fesem_jax.utils.ranges import Count, checked

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


class Stop(NamedTuple):
  """The return value of a callback that ends the run after this round."""

  reason: str  # a few words; the entry `ended` of `summary.json`


class Arranged(NamedTuple):
  """The data of a run on its devices, for callbacks that compute there.

  Attributes:
    train: training split as arranged and padded, M clients.
    test: test split, in the same order.
    places: [M] position in the arranged data, and in the rows of the state, of each
      client of the data passed to `simulate`.
    compiled: (what it does, key, function, *args) -> the function compiled for such
      arguments, once for all runs; two functions of one key must do the same.
    deployed: state -> the models that clients deploy, on the host.
  """

  train: FederatedData
  test: FederatedData
  places: np.ndarray
  compiled: Callable[..., Callable[..., Any]]
  deployed: Callable[[Any], DeployedModels]


def _ordered(values: Any, places: np.ndarray) -> np.ndarray | None:
  """Values [M] by client; read-only, as callbacks share them."""
  if values is None:
    return None
  ordered = np.asarray(values)[places]
  ordered.setflags(write=False)
  return ordered


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Event:
  """A run before a round, after a round or at its end. Clients are in the data's order.

  Attributes:
    algorithm: see `simulate`, as `train`, `test`, `rounds`, `seed` and `workdir`.
    config: the configuration of the run, if any.
    number: of the round, from 1; before a round, the rounds that are done.
    record: the round's line of `metrics.jsonl`, to which callbacks may add entries with
      new names and values that JSON can hold; before round 1, the first clusters.
    records: those of the previous rounds; do not change them.
    state: of the method, on the devices; None in `on_end`.
    arranged: the data on the devices.
    info: the report of the method on the round, on the host, clients as arranged.
    drawn: the clients of the round, as arranged.
    measured: what was measured of the round, clients as arranged; None without an
      evaluation.
    result: of the run, in `on_end`.
    reason: in `on_end`: 'finished', 'patience', or the reason of a callback's `Stop`.
    columns: in `on_end`, takes columns of the table of clients: name -> [M] numbers.
  """

  algorithm: Algorithm
  train: FederatedData
  test: FederatedData
  rounds: int
  seed: int
  workdir: pathlib.Path | None
  config: Record | None
  arranged: Arranged
  number: int
  record: Record
  records: Sequence[Record]
  state: Any
  clusters: Any = None  # [M] as arranged
  info: RoundInfo | None = None
  drawn: Cohort | None = None
  measured: Any = None
  table: Callable[[Any], 'DataFrame'] | None = None
  result: Result | None = None
  reason: str = ''
  columns: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def models(self) -> DeployedModels:
    """The models that clients deploy, on the host, fetched on first access.

    The next round reuses their memory. Access them in every process or in none.
    """
    return self.arranged.deployed(self.state)

  @functools.cached_property
  def assignment(self) -> np.ndarray | None:
    """[M] int32 cluster of each client, K before it has joined; None without any."""
    return _ordered(self.clusters, self.arranged.places)

  @functools.cached_property
  def cohort(self) -> np.ndarray:
    """[S] int positions of the clients that were drawn, in increasing order."""
    assert self.drawn is not None
    order, ids = np.argsort(self.arranged.places), np.asarray(self.drawn.ids)
    places = np.sort(order[ids[ids < len(order)]])
    places.setflags(write=False)
    return places

  @functools.cached_property
  def clients(self) -> 'DataFrame | None':
    """Metrics of each client, as in `Result`; None without an evaluation."""
    if self.measured is None or self.table is None:
      return None
    return self.table(self.measured)

  @property
  def finetuning_failed(self) -> np.ndarray:
    """[M] bool, True if the fine-tuned model of the client is not finite."""
    return np.asarray(self.measured.failed)[self.arranged.places]

  @property
  def summary(self) -> Record:
    """The content of `summary.json`, in `on_end`. Add entries as to `record`."""
    assert self.result is not None
    return self.result.summary


class Callback:
  """The base class of callbacks; its methods do nothing.

  Override the methods that you need, and pass instances of your class to
  `simulate(..., callbacks=[...])`. They are called in the order of the list, in every
  process; write files in the first one only (`processes.is_first()`).
  An error of a method ends the run; a resumed run continues after the last checkpoint.

  Attributes:
    wants_clients: whether `Event.info.clients` reports each client of the round.
  """

  wants_clients: bool = False

  def on_start(self, event: Event) -> Stop | None:
    """Called before the first round of a run or of a resumed run."""

  def on_round(self, event: Event) -> Stop | None:
    """Called after each round, and after its evaluation if it has one.

    A round without evaluation that a callback ends is evaluated then, and all callbacks
    are called again for it.
    """

  def on_end(self, event: Event) -> None:
    """Called after the last round, or for a finished run, before the summary is."""

  def close(self, error: BaseException | None) -> None:
    """Called last; `error` is the exception that ended the run, or None."""


class Patience(Callback):
  """Ends a run after some `rounds` in which no client moved and Eq. 6 did not change.

  Eq. 6 counts if the method measures it, and may change by less than 0.1 %. Methods
  without clusters are refused. The reason of the end is 'patience'.
  """

  @checked
  def __init__(self, rounds: Count):
    self.rounds = rounds


class Progress(Callback):
  """Shows or hides the progress of a run, which is shown by default."""

  def __init__(self, shown: bool):
    self.shown = shown


class Unseen(Callback):
  """Measures clients that take no part in a run, after its last round, as `unseen`.

  They choose a model by their training losses. Splits are as the second pair of
  `data.hold_out_clients`. Methods with personal models or layers have no such metrics.
  """

  def __init__(self, train: FederatedData, test: FederatedData):
    self.splits = train, test


class Drift(Callback):
  """Changes the data of a run at the beginning of some rounds.

  `phases` are as those of `data.load_phases` but the first; only values may differ.
  """

  def __init__(self, phases: Sequence[Phase]):
    self.phases = tuple(phases)
