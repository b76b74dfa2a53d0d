"""Callbacks of a run: loggers, progress, checkpoints, early stopping.

May import `run.results`, `evaluation`, `training` and what they may.
"""

from fesem_jax.run.callbacks.best_round import BestRound
from fesem_jax.run.callbacks.callback import Drift, Event, Patience, Progress, Unseen
from fesem_jax.run.callbacks.costs import Costs

__all__ = [
  'BestRound',
  'Costs',
  'Drift',
  'Event',
  'Patience',
  'Progress',
  'Unseen',
]
