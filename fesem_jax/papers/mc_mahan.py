"""What ends the runs of McMahan et al., "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, which count rounds to a target.
"""

from fesem_jax.callbacks.callback import Callback, Stop
from fesem_jax.callbacks.events import Evaluation


class StopAt(Callback):
  """Ends a run whose deployed accuracy has reached a target.

  Args:
    target: share of the examples.
  """

  def __init__(self, target: float):
    self._target = target

  def on_evaluation(self, event: Evaluation) -> Stop | None:
    """Ends the run once the target is reached."""
    reached = event.record['deployed']['micro_accuracy'] >= self._target
    return Stop('target reached') if reached else None


def stop_at_97() -> Callback:
  """Of the 2NN, with its 97 %."""
  return StopAt(0.97)


def stop_at_99() -> Callback:
  """Of the CNN, with its 99 %."""
  return StopAt(0.99)
