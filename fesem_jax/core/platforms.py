"""The choice between implementations for CPUs and for accelerators."""

from collections.abc import Callable
from typing import Any

import jax


def choose(
  cpu: Callable[..., Any],
  accelerator: Callable[..., Any],
  *args: Any,
  tpu: Callable[..., Any] | None = None,
) -> Any:
  """`cpu(*args)` or `accelerator(*args)`, by the platform that runs the program.

  The choice falls when the program is lowered: tracing does not depend on the devices
  of this machine, so that a program can be compiled for others.

  Args:
    cpu: gives what `accelerator` gives, up to rounding.
    accelerator: for GPUs and TPUs.
    *args: trees of arrays; what else the functions need they close over.
    tpu: for TPUs, where what is best for GPUs is not.
  """
  functions = {'cpu': cpu, 'tpu': tpu or accelerator}
  return jax.lax.platform_dependent(*args, **functions, default=accelerator)
