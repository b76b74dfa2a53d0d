"""Callbacks of a run, and the event that they are called with."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort
from fesem_jax.run.results import client_table
from fesem_jax.run.results.deployed_models import DeployedModels
from fesem_jax.run.results.records import Record
from fesem_jax.run.results.result import Result
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


class Stop(NamedTuple):
  """The return value of a callback that ends the run after this round."""

  reason: str  # a few words; the entry `ended` of `summary.json`


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Event:
  """A run before a round, after a round or at its end. Clients are in the data's order.

  Attributes:
    algorithm: see `simulate`, as `train`, `test`, `rounds`, `seed` and `workdir`.
    config: the configuration of the run, if any.
    arranged: training and test split as arranged and padded on the devices.
    places: [M] position in `arranged`, and in the rows of the state, of each client.
    compiled: (what it does, key, function, *args) -> the function compiled for such
      arguments, once for all runs; two functions of one key must do the same.
    deployed: state -> the models that clients deploy, on the host.
    number: of the round, from 1; before a round, the rounds that are done.
    record: the round's line of `metrics.jsonl`, to which callbacks may add entries with
      new names and values that JSON can hold; before round 1, the first clusters.
    records: those of the previous rounds; do not change them.
    state: of the method, on the devices; None in `on_end`.
    clusters: [M] cluster of each client as arranged; None without any.
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
  arranged: tuple[FederatedData, FederatedData]
  places: np.ndarray
  compiled: Callable[..., Callable[..., Any]]
  deployed: Callable[[Any], DeployedModels]
  number: int
  record: Record
  records: Sequence[Record]
  state: Any
  clusters: Any = None
  info: RoundInfo | None = None
  drawn: Cohort | None = None
  measured: Any = None
  result: Result | None = None
  reason: str = ''
  columns: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def models(self) -> DeployedModels:
    """The models that clients deploy, on the host, fetched on first access.

    The next round reuses their memory. Access them in every process or in none.
    """
    return self.deployed(self.state)

  @functools.cached_property
  def assignment(self) -> np.ndarray | None:
    """[M] int32 cluster of each client, K before it has joined; None without any."""
    if self.clusters is None:
      return None
    return _read_only(np.asarray(self.clusters)[self.places])

  @functools.cached_property
  def cohort(self) -> np.ndarray:
    """[S] int positions of the clients that were drawn, in increasing order."""
    assert self.drawn is not None
    order, ids = np.argsort(self.places), np.asarray(self.drawn.ids)
    return _read_only(np.sort(order[ids[ids < len(order)]]))

  @functools.cached_property
  def clients(self) -> 'DataFrame | None':
    """Metrics of each client, as in `Result`; None without an evaluation."""
    if self.measured is None:
      return None
    task = self.algorithm.local.model.measured_as
    return client_table.make(self.measured, self.arranged[0], self.places, task)

  @property
  def summary(self) -> Record:
    """The content of `summary.json`, in `on_end`. Add entries as to `record`."""
    assert self.result is not None
    return self.result.summary


def _read_only(x: np.ndarray) -> np.ndarray:
  x.setflags(write=False)  # Callbacks share it.
  return x


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


def check_callbacks(callbacks: Sequence[Callback]) -> None:
  """Raises `UserError` on other objects, and on unknown methods `on_...`."""
  for callback in callbacks:
    kind = type(callback).__name__
    check(isinstance(callback, Callback), f'callbacks: {kind} is no fesem_jax.Callback')
    names = set(dir(callback)) - set(dir(Callback))
    unknown = sorted(name for name in names if name.startswith('on_'))
    check(not unknown, f'callbacks: {kind} has unknown methods {unknown}')


def call(
  callbacks: Sequence[Callback], method: str, event: Event, record: Record
) -> str | None:
  """Calls a method of all callbacks, which may add entries to a record.

  Returns the first reason to stop, decided by the first process.
  """
  stops = []
  for callback in callbacks:
    before = dict(record)
    stops.append(getattr(callback, method)(event))
    added = {k: x for k, x in record.items() if k not in before or before[k] is not x}
    text = json.dumps(added, default=lambda x: x.tolist())
    record.update(json.loads(text, parse_constant=lambda _: None))  # NaN is None.
  reason = next((stop.reason for stop in stops if stop is not None), None)
  return processes.from_first(lambda: reason) if callbacks else reason
