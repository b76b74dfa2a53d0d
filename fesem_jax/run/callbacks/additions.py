"""Entries that some runs add to their records: epsilon, a backdoor, a server's test."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import placement
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sending import Privacy
from fesem_jax.core.traffic import Traffic
from fesem_jax.data import attacks
from fesem_jax.evaluation import evaluate, privacy
from fesem_jax.run.callbacks.callback import Callback, Event
from fesem_jax.utils import processes


class Addition(Callback):
  """Adds an entry to the records of evaluated rounds, and the last one to the summary.

  The summary also gets the entries `more`.
  """

  def __init__(self, name: str, measure: Callable[[Event], Any], **more: Any):
    self._name, self._measure, self._more = name, measure, more

  def on_round(self, event: Event) -> None:
    """Measures the models of an evaluated round."""
    if event.measured is not None:
      event.record[self._name] = self._measure(event)

  def on_end(self, event: Event) -> None:
    """Adds the value of the last evaluation."""
    event.summary.update({self._name: event.record.get(self._name)} | self._more)


def privacy_spent(
  noise: Privacy, traffic: Traffic | None, sampling_rate: float
) -> Addition:
  """Adds `epsilon`, None where none is computed or it is infinite."""
  # Who sends nothing spends nothing.
  sends = traffic is None or traffic.model > 0
  before = 0 if traffic is None else traffic.models_before

  def epsilon(event: Event) -> float | None:
    if not sends:
      return 0.0
    spent = privacy.epsilon(noise, event.record['round'], sampling_rate, before)
    return None if spent is None or math.isinf(spent) else spent

  more = {'sampling_rate': sampling_rate, 'models_before': before}
  return Addition('epsilon', epsilon, dp=noise._asdict() | more)


def backdoor_success(train: FederatedData, target: int) -> Addition:
  """Adds `backdoor_success`.

  It is the share of the honest clients' test examples of other classes that their
  deployed models take for the target once they have the pattern.
  """
  value = np.asarray(train.x).max()

  def success(event: Event) -> float | None:
    (train, test), algorithm = event.arranged, event.algorithm

    def measure(
      state: Any, train: FederatedData, test: FederatedData, value: jax.Array
    ) -> Any:
      classes = test.num_classes
      y = jnp.where(test.y == target, (target + 1) % classes, target)
      width = None if test.flat_from is None else test.x.shape[1]
      x = jnp.where(attacks.mask(test.example_shape, width), value, test.x)
      marked = dataclasses.replace(test, x=x, y=y.astype(test.y.dtype))
      used, key = algorithm.deployed(state, train), jax.random.key(0)
      totals = evaluate.evaluate_clients(used, algorithm.local, train, marked, key, 0)
      return totals[0].sums

    args, key = (event.state, train, test, value), ('backdoor', algorithm, target)
    program = event.compiled('the backdoor', key, measure, *args)
    counts = processes.on_host(program(*args))
    honest = attacks.honest(train)
    right, total = (
      int(np.asarray(x)[honest, target].sum()) for x in (counts.correct, counts.actual)
    )
    return right / total if total else None

  return Addition('backdoor_success', success)


def server_metrics(local: LocalTraining, test: FederatedData) -> Addition:
  """Adds `server`, the metrics of shared models on `FederatedData.server_test`.

  It has the `micro_` metrics of the global model; of several centers, those of the best
  one, its number `cluster`, and all `clusters`.
  """
  assert test.server_test is not None
  x, y = test.server_test
  split = FederatedData.from_arrays(
    x, y, np.array([len(x)]), num_classes=test.num_classes, scale=test.scale,
    task=test.task,
  )  # fmt: skip
  split = placement.place(split, local.mesh, 'replicated')
  task = local.model.measured_as

  def metrics(event: Event) -> Any:
    algorithm = event.algorithm

    def measure(state: Any, train: FederatedData, split: FederatedData) -> Any:
      def totals(params: Any) -> evaluate.Totals:
        one = jax.tree.map(lambda x: x[None], params)
        model, ids = algorithm.local.model, jnp.zeros(1, jnp.int32)
        return evaluate.measure_chunk(model, one, split, ids)

      return jax.lax.map(totals, algorithm.deployed(state, train).shared)

    args = event.state, event.arranged[0], split
    what = 'the evaluation on the test set of the server'
    totals = processes.on_host(event.compiled(what, algorithm, measure, *args)(*args))
    centers = []
    for k in range(len(totals.loss)):
      scores = evaluate.scores(jax.tree.map(lambda x, k=k: x[k], totals), task)
      centers.append({n: v for n, v in scores.items() if n.startswith('micro_')})
    if len(centers) == 1:
      return centers[0]
    values = [task.primary.better(scores[task.primary_column]) for scores in centers]
    best = int(np.argmax(values))
    return {**centers[best], 'cluster': best, 'clusters': centers}

  return Addition('server', metrics)
