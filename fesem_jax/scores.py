"""Scores and clusters of the models that clients deploy during a run."""

from typing import Any

import jax
import numpy as np

from fesem_jax import evaluate, records
from fesem_jax.base import FederatedData
from fesem_jax.cohorts import arrange
from fesem_jax.local_sgd import LocalTraining
from fesem_jax.method import Algorithm, ClientModels
from fesem_jax.programs import Programs


class Evaluation:
  """Measures the deployed models of a run, in programs that other seeds share.

  Args:
    algorithm: see `Algorithm`.
    local: how its clients train.
    train: training split as arranged.
    test: test split as arranged.
    finetune_epochs: local epochs before the `finetuned` scores.
    key: the stream of fine-tuning.
    programs: compiled so far.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    local: LocalTraining,
    train: FederatedData,
    test: FederatedData,
    finetune_epochs: int,
    key: jax.Array,
    programs: Programs,
  ):
    self._algorithm, self._local = algorithm, local
    self._train, self._test = train, test
    self._finetune_epochs, self._key = finetune_epochs, key
    self._programs = programs

  def scores(self, state: Any, number: int) -> dict[str, Any]:
    """What the record of a round says of the deployed models.

    Args:
      state: the algorithm's, after the round.
      number: of the round, counted from 1.

    Returns:
      `deployed` and `finetuned` scores, the clients whose fine-tuning failed, and
      the clusters that clients deploy from, if any.
    """
    algorithm, local, epochs = self._algorithm, self._local, self._finetune_epochs

    def measure(state: Any, train: FederatedData, test: FederatedData, key: jax.Array):
      used = algorithm.deployed(state, train)
      measured = evaluate.evaluate_clients(used, local, train, test, key, epochs)
      return measured, used.clusters()

    args = (state, self._train, self._test, jax.random.fold_in(self._key, number))
    program = self._programs.compiled(
      ('measure', algorithm, local, epochs), measure, *args
    )
    (deployed, finetuned, failed), assignment = jax.device_get(program(*args))
    tested = np.asarray(self._test.sizes()) > 0
    return {
      'deployed': evaluate.scores(deployed)._asdict(),
      'finetuned': evaluate.scores(finetuned)._asdict(),
      'finetuning_failed': int((failed & tested).sum()),
      **self._clusters(state, assignment),
    }

  def clusters(self, state: Any) -> dict[str, Any]:
    """The clusters that clients deploy from.

    Args:
      state: the algorithm's.

    Returns:
      See `records.clusters`; empty where there are no clusters.
    """
    algorithm, args = self._algorithm, (state, self._train)
    if not self._shapes(state).has_clusters():
      return {}

    def find(state: Any, train: FederatedData):
      return algorithm.deployed(state, train).clusters()

    program = self._programs.compiled(('assignment', algorithm), find, *args)
    return self._clusters(state, jax.device_get(program(*args)))

  def unseen(
    self, state: Any, unseen: tuple[FederatedData, FederatedData]
  ) -> dict[str, Any] | None:
    """Scores of clients that took no part.

    Args:
      state: the algorithm's, after the last round.
      unseen: their training and test split, on the host.

    Returns:
      Their scores with the deployed models of least training loss; None where layers
      are clients' own.
    """
    algorithm, local = self._algorithm, self._local
    if self._shapes(state).own is not None:
      return None

    def measure(
      state: Any, seen: FederatedData, train: FederatedData, test: FederatedData
    ) -> evaluate.Counts:
      used = algorithm.deployed(state, seen)
      used = evaluate.models_of_unseen(used, seen.sizes() > 0, local, train)
      key = jax.random.key(0)  # Nothing is fine-tuned.
      return evaluate.evaluate_clients(used, local, train, test, key, 0)[0]

    args = (state, self._train, *arrange(local, *unseen))
    program = self._programs.compiled(('unseen', algorithm, local), measure, *args)
    return evaluate.scores(jax.device_get(program(*args)))._asdict()

  def _shapes(self, state: Any) -> ClientModels:
    """Shapes and dtypes of what is deployed."""
    deployed, args = self._algorithm.deployed, (state, self._train)
    return self._programs.once(
      ('deployed', self._algorithm), lambda: jax.eval_shape(deployed, *args), *args
    )

  def _clusters(self, state: Any, assignment: np.ndarray | None) -> dict[str, Any]:
    if assignment is None:
      return {}
    return records.clusters(assignment, self._shapes(state).num_models(), self._train)
