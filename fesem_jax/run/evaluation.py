"""Scores and clusters of the models that clients deploy during a run."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import offloading, placement, prng_streams
from fesem_jax.core.algorithm import Algorithm, ClientModels, Clusters, RoundInfo
from fesem_jax.core.arrangement import arrange
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.attacks import honest
from fesem_jax.evaluation import evaluate
from fesem_jax.run.results import client_table, records
from fesem_jax.run.state_placement import of_clients
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

  from fesem_jax.run.programs import Program, Programs


class Measured(NamedTuple):
  """Measurements after a round, on the host, of the clients as arranged."""

  deployed: evaluate.Totals  # of the deployed models
  finetuned: evaluate.Totals  # of the fine-tuned models
  failed: np.ndarray  # [M] bool clients whose fine-tuning was not finite
  assignment: np.ndarray | None  # [M] int32 cluster that each deploys from, or None
  num_models: int  # how many models clients choose from


def measure_with(algorithm: Algorithm, epochs: int) -> Callable[..., Any]:
  """(state, train, test, key) -> what is measured after a round, and the clusters.

  `epochs` are the local epochs before the `finetuned` scores.
  """

  def measure(state: Any, train: FederatedData, test: FederatedData, key: jax.Array):
    used = algorithm.deployed(state, train)
    local = algorithm.local
    measured = evaluate.evaluate_clients(used, local, train, test, key, epochs)
    return measured, used.clusters()

  return measure


class Evaluator:
  """Measures the deployed models of a run, in programs that other seeds share.

  The splits are as arranged, `finetune_epochs` are the local epochs before the
  `finetuned` scores, `key` is the stream of fine-tuning, and `state` has shapes and
  shardings of the algorithm's state. The attribute `num_clients` is M without the
  clients that pad the data.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    train: FederatedData,
    test: FederatedData,
    finetune_epochs: int,
    key: jax.Array,
    programs: 'Programs',
    state: Any,
  ):
    self._algorithm, self._task = algorithm, algorithm.local.model.measured_as
    self._train, self._test = train, test
    self._finetune_epochs, self._key = finetune_epochs, key
    self._programs, self._state = programs, state
    self.num_clients = len(train.info.names)

  def use(self, train: FederatedData, test: FederatedData) -> None:
    """Measures on other data of the same clients and shapes from now on."""
    self._train, self._test = train, test

  def compile(self, wait: bool = True) -> 'Program':
    """The program that measures; `wait` is that of `Programs.compiled`."""
    algorithm, epochs = self._algorithm, self._finetune_epochs
    _ = self._shapes  # Which raises on wrong ones.
    return self._programs.compiled(
      ('measure', algorithm, epochs),
      measure_with(algorithm, epochs),
      self._state,
      self._train,
      self._test,
      self._key,
      wait=wait,
    )

  @functools.cached_property
  def _measuring(self) -> 'Program':
    """The program that measures, once it is compiled; looked up once in a run."""
    return self.compile()

  def measure(self, state: Any, number: int) -> Measured:
    """Measures every client's deployed model, as it is and fine-tuned.

    `state` is that after the round `number`, counted from 1.
    """
    key, program = prng_streams.folded(self._key, number), self._measuring
    leaves, whole = jax.tree.flatten(program(state, self._train, self._test, key))
    # One after the other, or those of many clients would be there twice.
    moved = [processes.on_host(leaves.pop(0)) for _ in range(len(leaves))]
    return self.measured(jax.tree.unflatten(whole, moved))

  def measured(self, results: Any) -> Measured:
    """The results of the program of `measure_with`, on the host."""
    (deployed, finetuned, failed), assignment = results
    return Measured(deployed, finetuned, failed, assignment, self.num_models())

  def record(self, measured: Measured) -> dict[str, Any]:
    """Entries of the record of a round for what was measured.

    Returns:
      `deployed` and `finetuned` scores, the clients whose fine-tuning failed, the
      clusters that clients deploy from, if any, and, where some clients are bad,
      `honest`: the same of the others.
    """
    tested = np.asarray(self._test.sizes()) > 0
    entries: dict[str, Any] = {
      'deployed': evaluate.scores(measured.deployed, self._task),
      'finetuned': evaluate.scores(measured.finetuned, self._task),
      'finetuning_failed': int((measured.failed & tested).sum()),
    }
    if measured.assignment is not None:
      chosen = measured.assignment, measured.num_models
      entries |= records.clusters(*chosen, self._train)
    return entries | self._of_honest(measured)

  def _of_honest(self, measured: Measured) -> dict[str, Any]:
    """The entry `honest`; none where no client is to be bad."""
    kept = honest(self._train)
    if kept is None:
      return {}
    real = self.num_clients
    entries: dict[str, Any] = {
      'clients': int(kept[:real].sum()),
      'deployed': self._scores_of(measured.deployed, kept),
      'finetuned': self._scores_of(measured.finetuned, kept),
    }
    if measured.assignment is not None:
      truth = self._train.info.clusters
      truth = None if truth is None else truth[kept[:real]]
      entries |= evaluate.agreement(truth, measured.assignment[:real][kept[:real]])
    return {'honest': entries}

  def _scores_of(self, totals: evaluate.Totals, chosen: np.ndarray) -> dict[str, float]:
    """Scores of the `chosen` clients, [M] bool as arranged."""
    real = self.num_clients
    rows = jax.tree.map(lambda x: np.asarray(x)[:real][chosen[:real]], totals)
    return evaluate.scores(rows, self._task)

  def trained(
    self, measured: Measured, state: Any, init_key: jax.Array
  ) -> dict[str, Any]:
    """Entries of the summary on clients whose personal model has been trained.

    `trained` is their share, and `trained_deployed` has the scores of their deployed
    models. Empty for methods whose clients deploy no parameters of their own. A client
    has trained if its rows of the `state` differ from those of the start by more than
    rounding.
    """
    algorithm, offloaded = self._algorithm, offloading.is_offloaded(self._shapes.own)
    if self._shapes.own is None or offloaded:
      return {}

    def changed(state: Any, train: FederatedData, key: jax.Array) -> jax.Array:
      start = algorithm.init(key, train)
      rows = [
        ~jnp.isclose(new, first).reshape(train.num_clients, -1).all(axis=1)
        for new, first in zip(*map(jax.tree.leaves, (state, start)), strict=True)
        if of_clients(new, train)
      ]
      return functools.reduce(jnp.logical_or, rows, jnp.zeros(train.num_clients, bool))

    args = state, self._train, init_key
    program = self._programs.compiled(('trained', algorithm), changed, *args)
    clients = processes.on_host(program(*args))
    return {
      'trained': float(clients[: self.num_clients].mean()),
      'trained_deployed': self._scores_of(measured.deployed, clients),
    }

  def clients(self, measured: Measured, places: np.ndarray) -> 'DataFrame':
    """Measurements client by client.

    `places` [M] is the position of the table's first, second, ... client as arranged.
    """
    truth, chosen = self._train.info.clusters, measured.assignment
    kept = honest(self._train)
    return client_table.make(
      self._train.info.names[places],
      np.asarray(self._train.sizes())[places],
      None if truth is None else truth[places],
      None if chosen is None else chosen[places],
      measured.deployed,
      measured.finetuned,
      places,
      self._task,
      None if kept is None else kept[places],
    )

  def models(self, state: Any) -> ClientModels:
    """The models that clients deploy, as arranged, where the state keeps them."""
    deployed, args = self._algorithm.deployed, (state, self._train)
    if offloading.is_offloaded(self._shapes.own):
      return deployed(*args)  # A program would copy them.
    key = ('models', self._algorithm)
    return self._programs.compiled(key, deployed, *args)(*args)

  def assignment(self, state: Any) -> np.ndarray | None:
    """[M] int32 cluster that each client deploys from; None without clusters."""
    algorithm, args = self._algorithm, (state, self._train)
    if not self._shapes.has_clusters():
      return None

    def find(state: Any, train: FederatedData):
      return algorithm.deployed(state, train).clusters()

    program = self._programs.compiled(('assignment', algorithm), find, *args)
    return processes.on_host(program(*args))

  def clusters(self, assignment: np.ndarray) -> dict[str, Any]:
    """`records.clusters` of the clusters that clients deploy from."""
    return records.clusters(assignment, self.num_models(), self._train)

  def num_models(self) -> int:
    """How many models clients choose from, or clusters they belong to."""
    return self._shapes.num_clusters()

  def of_one_model(self, record: dict[str, Any]) -> float | None:
    """The first figure of the one model that all clients deploy, on the test split.

    It is their micro figure, which is over all test examples; `record` has the deployed
    scores after the last round. None where clients deploy several models, or layers of
    their own.
    """
    used = self._shapes
    one = used.own is None and used.mixture is None and used.num_models() == 1
    return record['deployed'][self._task.primary_column] if one else None

  def unseen(
    self, state: Any, unseen: tuple[FederatedData, FederatedData]
  ) -> dict[str, Any] | None:
    """Scores of clients that took no part, with the state after the last round.

    They use the deployed models of least training loss, or those that the method
    chooses (`Algorithm.of_unseen`); None where layers are clients' own. `unseen` are
    their training and test split, on the host.
    """
    algorithm, local = self._algorithm, self._algorithm.local
    if self._shapes.own is not None:
      return None

    def measure(
      state: Any, seen: FederatedData, train: FederatedData, test: FederatedData
    ) -> evaluate.Totals:
      if algorithm.of_unseen is not None:
        used = algorithm.of_unseen(state, train)
      else:
        used = algorithm.deployed(state, seen)
        used = evaluate.models_of_unseen(used, seen.sizes() > 0, local, train)
      key = jax.random.key(0)  # Nothing is fine-tuned.
      return evaluate.evaluate_clients(used, local, train, test, key, 0)[0]

    placed = arrange(local, *unseen, placement.of(self._train))
    args = (state, self._train, *placed)
    program = self._programs.compiled(('unseen', algorithm), measure, *args)
    return evaluate.scores(processes.on_host(program(*args)), self._task)

  @functools.cached_property
  def _shapes(self) -> ClientModels:
    """Shapes and dtypes of what is deployed, which are checked."""
    deployed, args = self._algorithm.deployed, (self._state, self._train)

    def shapes() -> ClientModels:
      models = jax.eval_shape(deployed, *args)
      _check_deployed(models, self._train.num_clients)
      return models

    return self._programs.once(('deployed', self._algorithm), shapes, *args)


def _check_deployed(used: ClientModels, count: int) -> None:
  """Raises `UserError` unless shapes of what is deployed are of `count` clients."""
  choice, mixture, models = used.choice, used.mixture, used.num_models()
  alone = models > 1 and choice is None and mixture is None
  check(not alone, f'deployed: gives {models} models and no choice')
  if choice is not None:
    right = choice.shape == (count,) and jnp.issubdtype(choice.dtype, jnp.integer)
    check(right, f'deployed: choice must be integers of shape {(count,)}')
  if mixture is not None:
    right = mixture.shape == (count, models)
    check(right, f'deployed: mixture must have shape {(count, models)}')


class DerivedClusters:
  """Clusters of a method that reports none: those that clients deploy from.

  `before` [M] int32 are the clusters before the first round that is asked for; None
  without any.
  """

  def __init__(self, evaluation: Evaluator, before: Any):
    self._evaluation, self._before = evaluation, before

  def added_to(
    self, info: RoundInfo, after: Any, data_changed: bool = False
  ) -> RoundInfo:
    """Adds the clusters of a round to `info`, what the method reports, on the host.

    Returns the same if it has clusters, or if clients deploy from none; but in a round
    whose data changed, clients of the oracle moved of whom its state knows nothing.
    `after` are the clusters after the round.
    """
    before, real = self._before, self._evaluation.num_clients
    if (reported := info.clusters) is not None:
      self._before = now = np.asarray(reported.assignment)
      if not data_changed or before is None or reported.moved:
        return info
      moved = ((before != now) & (now < len(reported.sizes)))[:real].sum()
      return info._replace(clusters=reported._replace(moved=moved))
    if before is None or after is None:
      return info
    sizes: Any = np.bincount(after[:real], minlength=self._evaluation.num_models())
    self._before = after
    return info._replace(
      clusters=Clusters(after, sizes, (before != after)[:real].sum())
    )
