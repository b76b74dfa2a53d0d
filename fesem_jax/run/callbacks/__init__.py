"""Callbacks of a run: loggers, progress, checkpoints, early stopping.

May import `run.results`, `evaluation`, `training` and what they may.
"""

from fesem_jax.run.callbacks.best_round import BestRound
from fesem_jax.run.callbacks.callback import Drift, Event, Patience, Progress, Unseen
from fesem_jax.run.callbacks.client_history import ClientHistory
from fesem_jax.run.callbacks.costs import Costs
from fesem_jax.run.callbacks.host_metrics import HostMetrics

__all__ = [
  'BestRound',
  'ClientHistory',
  'Costs',
  'Drift',
  'Event',
  'HostMetrics',
  'Patience',
  'Progress',
  'Unseen',
]
