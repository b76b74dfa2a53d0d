"""The privacy that a run has spent, in its records and its summary."""

import math

from fesem_jax.core.sending import Privacy
from fesem_jax.core.traffic import Traffic
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.events import End, Evaluation
from fesem_jax.run.results import privacy


class PrivacySpent(Callback):
  """Adds `epsilon` to the records of evaluated rounds and to the summary, with `dp`.

  Args:
    of: the noise of the run.
    traffic: the messages of its method; None for one model each way.
    sampling_rate: share of the clients in a round.
  """

  def __init__(self, of: Privacy, traffic: Traffic | None, sampling_rate: float):
    self._of, self._rate = of, sampling_rate
    # Who sends nothing spends nothing.
    self._sends = traffic is None or traffic.model > 0
    self._before = 0 if traffic is None else traffic.models_before

  def on_evaluation(self, event: Evaluation) -> None:
    """Adds the epsilon after a round."""
    event.record['epsilon'] = self._spent(event.number)

  def on_end(self, event: End) -> None:
    """Adds the epsilon of the whole run, and what it follows from."""
    spent = self._spent(event.summary['rounds'])
    event.summary['epsilon'] = spent
    event.summary['dp'] = {
      'dp': self._of.where,
      'clip': self._of.clip,
      'noise_multiplier': self._of.noise_multiplier,
      'delta': self._of.delta,
      'sampling_rate': self._rate,
      'models_before': self._before,
      'epsilon': spent,
    }

  def _spent(self, rounds: int) -> float | None:
    """Epsilon; None where none is computed, or it is infinite."""
    if not self._sends:
      return 0.0
    epsilon = privacy.epsilon(self._of, rounds, self._rate, self._before)
    return None if epsilon is None or math.isinf(epsilon) else epsilon
