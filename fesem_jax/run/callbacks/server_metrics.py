"""Metrics of the global or cluster models on a test set of the server."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import placement
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.evaluation import evaluate
from fesem_jax.run.callbacks.callback import Callback, Event
from fesem_jax.run.results.records import Record
from fesem_jax.tasks import Task
from fesem_jax.utils import processes


class ServerMetrics(Callback):
  """Adds `server` to the records of evaluations and to the summary.

  It has the `micro_` metrics of the global model on `FederatedData.server_test`. Of
  several centers they are those of the best one, `cluster` is its number, and
  `clusters` has the metrics of each. Methods with personal layers or mixtures have
  none.
  """

  def on_start(self, event: Event) -> None:
    """Puts the examples on the devices, as those of one client."""
    local, test = event.algorithm.local, event.test
    assert test.server_test is not None
    self._task = local.model.measured_as
    x, y = test.server_test
    split = FederatedData.from_arrays(
      x, y, np.array([len(x)]), num_classes=test.num_classes, scale=test.scale,
      task=test.task,
    )  # fmt: skip
    self._split = placement.place(split, local.mesh, 'replicated')

  def on_round(self, event: Event) -> None:
    """Measures the models of an evaluated round."""
    if event.measured is None:
      return
    algorithm = event.algorithm

    def measure(state: Any, train: FederatedData, split: FederatedData) -> Any:
      used = algorithm.deployed(state, train)
      if used.own is not None or used.mixture is not None:
        return None

      def totals(params: Any) -> evaluate.Totals:
        one = jax.tree.map(lambda x: x[None], params)
        model, ids = algorithm.local.model, jnp.zeros(1, jnp.int32)
        return evaluate.measure_chunk(model, one, split, ids)

      return jax.lax.map(totals, used.shared)

    args = event.state, event.arranged.train, self._split
    what = 'the evaluation on the test set of the server'
    program = event.arranged.compiled(what, algorithm, measure, *args)
    if (totals := processes.on_host(program(*args))) is not None:
      event.record['server'] = _scores(totals, self._task)

  def on_end(self, event: Event) -> None:
    """Adds the metrics of the last evaluation."""
    if 'server' in event.record:
      event.summary['server'] = event.record['server']


def _scores(totals: evaluate.Totals, task: Task) -> Record:
  """The entry `server` of totals [R, 1] of R models."""
  count = len(np.asarray(totals.loss))
  each = [
    evaluate.scores(jax.tree.map(lambda x, k=k: np.asarray(x)[k], totals), task)
    for k in range(count)
  ]
  each = [{n: v for n, v in s.items() if n.startswith('micro_')} for s in each]
  if count == 1:
    return each[0]
  best = int(np.argmax([task.primary.better(s[task.primary_column]) for s in each]))
  return {**each[best], 'cluster': best, 'clusters': each}
