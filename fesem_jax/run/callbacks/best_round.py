"""The round whose models are best on validation examples, and early stopping by it."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fesem_jax.core import placement
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.arrangement import ordered
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.attacks import honest
from fesem_jax.evaluation import evaluate
from fesem_jax.run.callbacks.callback import Callback, Event, Stop
from fesem_jax.run.results import saved_models
from fesem_jax.run.results.deployed_models import DeployedModels
from fesem_jax.run.results.records import Record
from fesem_jax.tasks import Metric
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Index, checked

VALIDATION, BEST_ROUND = 'validation', 'best_round'


class BestRound(Callback):
  """Keeps the models of the round that is best on validation examples.

  The first metric of the task decides, as micro accuracy; of equals, the first round is
  best. Records get `validation` scores, and the summary `best_round`: its `round`, and
  its `validation`, `deployed` and `finetuned` scores, of honest clients where some are
  bad. A workdir gets its models for `load_run(workdir, which='best')`.

  Attributes:
    models: those of the best round so far, on the host; None where they are in the
      workdir.
  """

  models: DeployedModels | None = None

  @checked
  def __init__(
    self,
    validation: FederatedData,
    stop_after: Index = 0,
    save_models: bool | None = None,
  ):
    """Keeps the best round.

    Args:
      validation: other examples of the same clients, as the second split of
        `data.hold_out`.
      stop_after: ends the run after this many evaluations in a row without a gain; 0
        never ends it.
      save_models: as of a `Workdir`.
    """
    self.validation, self._stop_after = validation, stop_after
    self._save_models = save_models

  def on_start(self, event: Event) -> None:
    """Places the validation examples; raises `UserError` if they do not fit."""
    train, validation = event.train, self.validation
    is_same = np.array_equal(train.client_ids, validation.client_ids) and all(
      getattr(train, name) == getattr(validation, name)
      for name in ('task', 'num_classes', 'scale', 'example_shape')
    )
    check(is_same, 'validation: must have the clients of the run; see data.hold_out')
    local, placed = event.algorithm.local, placement.of(event.arranged[0])
    _, validation = ordered(local, train, validation)
    self._placed = placement.place(validation, local.mesh, placed)

  def on_round(self, event: Event) -> Stop | None:
    """Measures on the validation examples, and ends a run without gain."""
    if event.measured is None:
      return None
    algorithm = event.algorithm
    task = algorithm.local.model.measured_as

    def measure(state: Any, train: FederatedData, validation: FederatedData):
      used, none = algorithm.deployed(state, train), jax.random.key(0)
      return evaluate.evaluate_clients(
        used, algorithm.local, train, validation, none, finetune_epochs=0
      )[0]

    args = event.state, event.arranged[0], self._placed
    key = 'validation', algorithm
    program = event.compiled('the validation', key, measure, *args)
    totals, kept = processes.on_host(program(*args)), honest(event.arranged[0])
    if kept is not None:
      totals = jax.tree.map(lambda x: x[kept], totals)
    event.record[VALIDATION] = evaluate.scores(totals, task)
    best, since = _best([*event.records, event.record], task.primary)
    if best is event.record:
      self._keep(event)
    return Stop('stop_after') if 0 < self._stop_after <= since else None

  def _keep(self, event: Event) -> None:
    """Keeps the models of this evaluation."""
    folder = event.workdir
    used: Any = event.models
    if folder is None:
      self.models = used
      return
    models = ClientModels(used.shared, used.choice, used.personal, used.mixture)
    saves = saved_models.are_wanted(models, len(used.names), self._save_models)

    def write() -> None:
      if saves:
        saved_models.write(folder, used, event.number, saved_models.BEST)
      else:  # That of an earlier round.
        (folder / saved_models.BEST).unlink(missing_ok=True)

    processes.from_first(write)

  def on_end(self, event: Event) -> None:
    """Says in the summary which round is best."""
    history = event.result.history if event.result else ()
    metric = event.algorithm.local.model.measured_as.primary
    best, _ = _best(history, metric)
    if best is not None:
      best = best | best.get('honest', {})  # As of its validation examples.
      kinds = 'round', VALIDATION, 'deployed', 'finetuned'
      event.summary[BEST_ROUND] = {kind: best[kind] for kind in kinds}


def _best(records: Sequence[Record], metric: Metric) -> tuple[Record | None, int]:
  """The first record of the best validation metric, and evaluations since; or None."""
  records = [r for r in records if VALIDATION in r]
  scores = [r[VALIDATION][f'micro_{metric.name}'] for r in records]
  # Records of earlier rounds have None for what is not finite, the worst.
  values = [-np.inf if x is None else metric.better(x) for x in scores]
  if not values:
    return None, 0
  i = int(np.argmax(values))
  return records[i], len(values) - 1 - i
