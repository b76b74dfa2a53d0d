"""Entries that some runs add to their records: epsilon, a backdoor, a server's test."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import placement
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.sending import Privacy
from fesem_jax.core.traffic import Traffic
from fesem_jax.data import attacks
from fesem_jax.evaluation import evaluate, privacy
from fesem_jax.run.callbacks.callback import Callback, Event
from fesem_jax.run.results.records import Record
from fesem_jax.tasks import Task
from fesem_jax.utils import processes


class PrivacySpent(Callback):
  """Adds `epsilon` to the records of evaluated rounds and to the summary, with `dp`."""

  def __init__(self, privacy: Privacy, traffic: Traffic | None, sampling_rate: float):
    self._privacy, self._rate = privacy, sampling_rate
    # Who sends nothing spends nothing.
    self._sends = traffic is None or traffic.model > 0
    self._before = 0 if traffic is None else traffic.models_before

  def on_round(self, event: Event) -> None:
    """Adds the epsilon after an evaluated round."""
    if event.measured is not None:
      event.record['epsilon'] = self._spent(event.number)

  def on_end(self, event: Event) -> None:
    """Adds the epsilon of the whole run, and what it follows from."""
    spent = self._spent(event.summary['rounds'])
    event.summary['epsilon'] = spent
    noise = self._privacy
    event.summary['dp'] = {
      'dp': noise.where,
      'clip': noise.clip,
      'noise_multiplier': noise.noise_multiplier,
      'delta': noise.delta,
      'sampling_rate': self._rate,
      'models_before': self._before,
      'epsilon': spent,
    }

  def _spent(self, rounds: int) -> float | None:
    """Epsilon; None where none is computed, or it is infinite."""
    if not self._sends:
      return 0.0
    epsilon = privacy.epsilon(self._privacy, rounds, self._rate, self._before)
    return None if epsilon is None or math.isinf(epsilon) else epsilon


class BackdoorSuccess(Callback):
  """Adds `backdoor_success` to the records of evaluations and to the summary.

  It is the share of the honest clients' test examples of other classes that their
  deployed models take for the target once they have the pattern.
  """

  def __init__(self, target: int):
    self._target = target

  def on_start(self, event: Event) -> None:
    """Keeps the largest value, of which the pattern is."""
    self._value = np.asarray(event.train.x).max()

  def on_round(self, event: Event) -> None:
    """Measures the models of an evaluated round on examples with the pattern."""
    if event.measured is None:
      return
    arranged, algorithm, target = event.arranged, event.algorithm, self._target

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

    args = event.state, arranged.train, arranged.test, self._value
    key = 'backdoor', algorithm, target
    counts = processes.on_host(
      arranged.compiled('the backdoor', key, measure, *args)(*args)
    )
    assert arranged.train.attack is not None
    kept = ~np.asarray(processes.on_host(arranged.train.attack.bad))
    right, all_of_them = (
      int(np.asarray(x)[kept, target].sum()) for x in (counts.correct, counts.actual)
    )
    share = right / all_of_them if all_of_them else None
    event.record['backdoor_success'] = share

  def on_end(self, event: Event) -> None:
    """Adds the value of the last evaluation."""
    event.summary['backdoor_success'] = event.record.get('backdoor_success')


class ServerMetrics(Callback):
  """Adds `server` to the records of evaluations and to the summary.

  It has the `micro_` metrics of the global model on `FederatedData.server_test`; of
  several centers, those of the best one, its number `cluster`, and all `clusters`.
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
      if used.personal is not None or used.mixture is not None:
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
  centers = [
    evaluate.scores(jax.tree.map(lambda x, k=k: np.asarray(x)[k], totals), task)
    for k in range(count)
  ]
  centers = [{n: v for n, v in s.items() if n.startswith('micro_')} for s in centers]
  if count == 1:
    return centers[0]
  best = int(np.argmax([task.primary.better(s[task.primary_column]) for s in centers]))
  return {**centers[best], 'cluster': best, 'clusters': centers}
