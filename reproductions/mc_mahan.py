"""End of the runs of McMahan et al., "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, which count rounds to a target.
"""

import functools

from fesem_jax.run.callbacks.callback import Callback, Event, Stop


class StopAt(Callback):
  """Ends a run whose deployed accuracy, a share of examples, has reached a target."""

  def __init__(self, target: float):
    self._target = target

  def on_round(self, event: Event) -> Stop | None:
    """Ends the run once the target is reached."""
    scores = event.record.get('deployed', {'micro_accuracy': 0.0})
    reached = scores['micro_accuracy'] >= self._target
    return Stop('target reached') if reached else None


stop_at_97 = functools.partial(StopAt, 0.97)  # Of the 2NN.
stop_at_99 = functools.partial(StopAt, 0.99)  # Of the CNN.
