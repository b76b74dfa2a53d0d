"""Calls of `cohort.for_each_client`, noted to count the trainings of a round."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training.kernel_change import Kernel
from fesem_jax.training.one_client import Client, LocalModel

# `Client` -> its `LocalModel`, the model that it sends or None, and what it keeps.
OneClient = Callable[[Client], tuple[LocalModel, Params, Any]]


class Call(NamedTuple):
  """A function of one client and all that it is mapped over; see `for_each_client`."""

  one: OneClient
  local: LocalTraining
  starts: ClientModels
  cohort: Cohort
  key: jax.Array
  state: Any
  given: Any
  broadcast: Any
  per_chunk: int  # the most clients side by side
  # Kernels of which `one` keeps changes to a shared start; see `shared_start`.
  kernels: tuple[Kernel, ...] = ()
  epochs: jax.Array | None = None  # [S] int32 in place of the schedule's


# Not an argument: a method's `step` would have to hand it on to each training.
CALLS: contextvars.ContextVar[list[Call] | None] = contextvars.ContextVar(
  'calls', default=None
)


@contextlib.contextmanager
def calls_noted() -> Iterator[list[Call]]:
  """Notes the calls of `for_each_client` that are traced within the block."""
  calls: list[Call] = []
  token = CALLS.set(calls)
  try:
    yield calls
  finally:
    CALLS.reset(token)
