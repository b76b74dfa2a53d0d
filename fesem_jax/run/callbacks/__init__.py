"""Callbacks of a run: bytes, the best round, and loggers.

May import `run.results`, `evaluation`, `training` and what they may.
"""

from fesem_jax.run.callbacks.best_round import BestRound
from fesem_jax.run.callbacks.callback import Event
from fesem_jax.run.callbacks.costs import Costs

__all__ = ['BestRound', 'Costs', 'Event']
