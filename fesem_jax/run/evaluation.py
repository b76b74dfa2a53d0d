"""Scores and clusters of the models that clients deploy during a run."""

from typing import Any, NamedTuple

import jax
import numpy as np

from fesem_jax.core import placement
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.arrangement import arrange
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.attacks import honest
from fesem_jax.evaluation import evaluate
from fesem_jax.run import programs
from fesem_jax.run.results import records
from fesem_jax.tasks import Task
from fesem_jax.utils import processes


class Measured(NamedTuple):
  """Measurements after a round, on the host, of the clients as arranged."""

  deployed: evaluate.Totals  # of the deployed models
  finetuned: evaluate.Totals  # of the fine-tuned models
  failed: np.ndarray  # [M] bool clients whose fine-tuning was not finite
  assignment: np.ndarray | None  # [M] int32 cluster that each deploys from, or None
  num_models: int  # how many models clients choose from


def record(
  measured: Measured, train: FederatedData, test: FederatedData, task: Task
) -> dict[str, Any]:
  """Entries of the record of a round; `honest` has those of the honest clients."""
  tested = np.asarray(test.sizes()) > 0
  entries: dict[str, Any] = {
    'deployed': evaluate.scores(measured.deployed, task),
    'finetuned': evaluate.scores(measured.finetuned, task),
    'finetuning_failed': int((measured.failed & tested).sum()),
  }
  assignment, real = measured.assignment, len(train.info.names)
  if assignment is not None:
    entries |= records.clusters(assignment, measured.num_models, train)
  if (kept := honest(train)) is not None:
    kept = kept[:real]
    entries['honest'] = {
      'clients': int(kept.sum()),
      'deployed': scores_of(measured.deployed, kept, task),
      'finetuned': scores_of(measured.finetuned, kept, task),
    }
    if assignment is not None:
      truth = train.info.clusters
      truth = None if truth is None else truth[kept]
      entries['honest'] |= evaluate.agreement(truth, assignment[:real][kept])
  return entries


def scores_of(
  totals: evaluate.Totals, chosen: np.ndarray, task: Task
) -> dict[str, float]:
  """Scores of the `chosen` clients, bool as arranged, without padding."""
  rows = jax.tree.map(lambda x: np.asarray(x)[: len(chosen)][chosen], totals)
  return evaluate.scores(rows, task)


def unseen(
  algorithm: Algorithm,
  state: Any,
  seen: FederatedData,
  splits: tuple[FederatedData, FederatedData],
) -> dict[str, Any]:
  """Scores of clients that took no part, with the state after the last round.

  They use the deployed models of least training loss, or those that the method
  chooses. `splits` are on the host.
  """
  local = algorithm.local

  def measure(
    state: Any, seen: FederatedData, train: FederatedData, test: FederatedData
  ) -> evaluate.Totals:
    if algorithm.unseen_models is not None:
      used = algorithm.unseen_models(state, train)
    else:
      used = algorithm.deployed(state, seen)
      used = evaluate.models_of_unseen(used, seen.sizes() > 0, local, train)
    key = jax.random.key(0)  # Nothing is fine-tuned.
    return evaluate.evaluate_clients(used, local, train, test, key, 0)[0]

  args = state, seen, *arrange(local, *splits, data_placement=placement.of(seen))
  what = 'the evaluation of unseen clients'
  totals = programs.compiled(what, algorithm, measure, *args)(*args)
  return evaluate.scores(processes.on_host(totals), local.model.measured_as)
