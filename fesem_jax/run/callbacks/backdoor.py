"""How often the pattern of a backdoor gives the class that bad clients want."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import attacks
from fesem_jax.evaluation import evaluate
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.events import End, Evaluation, Start
from fesem_jax.utils import processes


class BackdoorSuccess(Callback):
  """Adds `backdoor_success` to the records of evaluations and to the summary.

  It is the share of the honest clients' test examples of other classes that their
  deployed models take for the target once they have the pattern; None where there are
  none.

  Args:
    target: the class that the pattern is to give.
  """

  def __init__(self, target: int):
    self._target = target

  def on_start(self, start: Start) -> None:
    """Keeps the method, and the largest value, of which the pattern is."""
    self._algorithm = start.algorithm
    self._value = np.asarray(start.train.x).max()

  def on_evaluation(self, event: Evaluation) -> None:
    """Measures the models on examples with the pattern."""
    arranged, algorithm, target = event.arranged, self._algorithm, self._target

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
    program = arranged.compiled(('backdoor', algorithm, target), measure, *args)
    counts = processes.on_host(program(*args))
    assert arranged.train.attack is not None
    kept = ~np.asarray(processes.on_host(arranged.train.attack.bad))
    right, all_of_them = (
      int(np.asarray(x)[kept, target].sum()) for x in (counts.correct, counts.actual)
    )
    share = right / all_of_them if all_of_them else None
    event.record['backdoor_success'] = share

  def on_end(self, event: End) -> None:
    """Adds the value of the last evaluation."""
    event.summary['backdoor_success'] = event.records[-1].get('backdoor_success')
