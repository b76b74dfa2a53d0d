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

  The two are equal up to rounding; `tpu` is for TPUs, if they need another
  implementation than GPUs. Arguments are trees of arrays; the functions may close over
  other values.

  The platform is chosen at lowering: tracing does not depend on the devices of this
  machine, so that a program can be compiled for others.
  """
  functions = {'cpu': cpu, 'tpu': tpu or accelerator}
  return jax.lax.platform_dependent(*args, **functions, default=accelerator)
