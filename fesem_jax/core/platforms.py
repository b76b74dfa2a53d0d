"""Selection of implementations for CPUs and accelerators."""

from collections.abc import Callable
from typing import Any

import jax


def choose(
  cpu: Callable[..., Any],
  accelerator: Callable[..., Any],
  *args: Any,
  tpu: Callable[..., Any] | None = None,
) -> Any:
  """`cpu(*args)` or `accelerator(*args)`, depending on the platform of the program.

  The platform is chosen at lowering: tracing does not depend on the devices of this
  machine, so that a program can be compiled for others.

  Args:
    cpu: implementation for CPUs; equals `accelerator` up to rounding.
    accelerator: implementation for GPUs and TPUs.
    *args: trees of arrays; the functions may close over other values.
    tpu: implementation for TPUs, if it differs from the one for GPUs.
  """
  functions = {'cpu': cpu, 'tpu': tpu or accelerator}
  return jax.lax.platform_dependent(*args, **functions, default=accelerator)
