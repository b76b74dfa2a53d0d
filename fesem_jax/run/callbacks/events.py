"""Arguments of callbacks. Clients are in the order of the data passed to `simulate`."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort, Params
from fesem_jax.run.results.deployed_models import DeployedModels
from fesem_jax.run.results.records import Record
from fesem_jax.run.results.result import Result
from fesem_jax.utils.errors import UserError

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.


class ModelsByName(Mapping[str, Params]):
  """Name of each client -> the model that it deploys, on the host.

  The first access fetches the models of all clients. Clients that use a mixture of
  models have no single model; see `deployed`.

  Args:
    state: of the method; the next round reuses its memory.
    fetch: state -> the models.
  """

  def __init__(self, state: Any, fetch: Callable[[Any], DeployedModels]):
    self._state, self._fetch = state, fetch
    self._held: DeployedModels | None = None

  @property
  def deployed(self) -> DeployedModels:
    """All models: the centers and their clients, `predict`, `save_model`."""
    if self._held is None:
      self._held, self._state = self._fetch(self._state), None
    return self._held

  def __getitem__(self, client: str) -> Params:
    try:
      return self.deployed.params(client=client)
    except UserError as e:
      if client in self:
        raise
      raise KeyError(str(e)) from e

  def __contains__(self, client: object) -> bool:
    return client in self.deployed.names.tolist()

  def __iter__(self) -> Iterator[str]:
    return iter(self.deployed.names.tolist())

  def __len__(self) -> int:
    return len(self.deployed.names)


class Arranged(NamedTuple):
  """The data and the state on the devices, for callbacks that compute there.

  Attributes:
    train: training split as arranged and padded, M clients.
    test: test split, in the same order.
    places: position of each client of the data passed to `simulate` in the arranged
      data and in the rows of `state`.
    compiled: (key, function, *args) -> the function compiled for such arguments, once
      for all runs that share programs; see `Programs.compiled`.
    deployed: state -> the models that clients deploy, on the host.
    assignment: state -> [M] int32 cluster that each client deploys from, as arranged;
      None without clusters.
  """

  train: FederatedData
  test: FederatedData
  places: np.ndarray
  compiled: Callable[..., Callable[..., Any]]
  deployed: Callable[[Any], DeployedModels]
  assignment: Callable[[Any], np.ndarray | None]


def _of_clients(values: Any, places: np.ndarray) -> np.ndarray | None:
  """Values [M] in the order of the clients; read-only, as callbacks share them."""
  if values is None:
    return None
  ordered = np.asarray(values)[places]
  ordered.setflags(write=False)
  return ordered


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Moment:
  """A run between two rounds; see `Round`."""

  records: Sequence[Record]
  state: Any
  arranged: Arranged

  @functools.cached_property
  def models(self) -> ModelsByName:
    """Name of each client -> the model that it deploys, fetched on first access.

    Access it before the method returns, because the next round reuses the memory. With
    several processes, access it in every process or in none.
    """
    return ModelsByName(self.state, self.arranged.deployed)

  @functools.cached_property
  def assignment(self) -> np.ndarray | None:
    """[M] int32 cluster that each client deploys from; None without clusters."""
    choice = self.arranged.assignment(self.state)
    return _of_clients(choice, self.arranged.places)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Start(_Moment):
  """A run before its next round.

  Attributes:
    algorithm: see `simulate`.
    train: training split as passed to `simulate`.
    test: test split as passed to `simulate`.
    rounds: number of rounds of the whole run.
    seed: of the run.
    done: rounds that are done, which a resumed run skips.
    records: their records, as in `metrics.jsonl`.
    workdir: of the run; None if the run writes no files.
    config: the configuration passed to `simulate`, if any.
    state: of the method, on the devices.
    arranged: the data on the devices.
    models: see `Round`.
    assignment: see `Round`.
  """

  algorithm: Algorithm
  train: FederatedData
  test: FederatedData
  rounds: int
  seed: int
  done: int
  workdir: pathlib.Path | None
  config: Record | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Round(_Moment):
  """A round whose clients have trained.

  Attributes:
    number: of the round, from 1.
    record: its line of `metrics.jsonl` so far. Callbacks may add entries with new names
      and values that JSON can hold.
    records: those of the previous rounds; do not change them.
    info: the report of the method, on the host, clients as in `arranged`.
    seconds: duration of the round.
    state: of the method after the round, on the devices.
    arranged: the data on the devices.
    models: name of each client -> the model that it deploys, on the host, fetched on
      first access.
    assignment: [M] int32 cluster of each client after the round; K for a client that
      has not joined; None without clusters.
    cohort: [S] positions of the clients that were drawn.
  """

  number: int
  record: Record
  info: RoundInfo
  drawn: Cohort
  seconds: float

  @functools.cached_property
  def assignment(self) -> np.ndarray | None:
    """[M] int32 cluster of each client; None without clusters."""
    clusters = self.info.clusters
    choice = None if clusters is None else clusters.assignment
    return _of_clients(choice, self.arranged.places)

  @functools.cached_property
  def cohort(self) -> np.ndarray:
    """[S] int positions of the clients that were drawn, in increasing order."""
    order = np.argsort(self.arranged.places)
    ids = np.asarray(self.drawn.ids)
    places = np.sort(order[ids[ids < len(order)]])
    places.setflags(write=False)
    return places


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation(_Moment):
  """A round whose deployed models were measured.

  Attributes:
    number: of the round, from 1.
    record: as in `Round`, with `deployed`, `finetuned` and all other measurements.
    records: see `Round`.
    state: see `Round`.
    arranged: see `Round`.
    models: see `Round`.
    assignment: [M] int32 cluster that each client deploys from; None without clusters.
    clients: metrics of each client, as in `Result`, computed on first access.
    finetuning_failed: [M] bool, True if the fine-tuned model is not finite.
  """

  number: int
  record: Record
  measured: Any
  table: Callable[[Any, np.ndarray], 'DataFrame']

  @functools.cached_property
  def clients(self) -> 'DataFrame':
    """Metrics of each client with its deployed and its fine-tuned model."""
    return self.table(self.measured, self.arranged.places)

  @functools.cached_property
  def assignment(self) -> np.ndarray | None:
    """[M] int32 cluster that each client deploys from; None without clusters."""
    choice = self.measured.assignment
    return _of_clients(choice, self.arranged.places)

  @property
  def finetuning_failed(self) -> np.ndarray:
    """[M] bool, True if the fine-tuned model of the client is not finite."""
    return np.asarray(self.measured.failed)[self.arranged.places]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RoundEnd(_Moment):
  """A round whose record is complete.

  Attributes:
    number: of the round, from 1; 0 for the clusters before the first round.
    record: its line of `metrics.jsonl`.
    records: see `Round`.
    state: see `Round`.
    arranged: see `Round`.
    models: see `Round`.
    assignment: see `Evaluation`.
    last: whether the run ends or is interrupted after this round.
  """

  number: int
  record: Record
  last: bool = False


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class End:
  """A run after its last round.

  Attributes:
    result: the return value of `simulate`.
    reason: 'finished', 'patience', or the reason of a callback's `Stop`.
  """

  result: Result
  reason: str

  @property
  def summary(self) -> Record:
    """The content of `summary.json`. Add entries as to `Round.record`."""
    return self.result.summary

  @property
  def records(self) -> list[Record]:
    """The records of all rounds."""
    return self.result.history
