"""Calls of Orbax that write nothing to stderr and leave no memory behind."""

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging


@contextlib.contextmanager
def _without_metrics() -> Iterator[None]:
  """Keeps Orbax from asking TensorStore for counts of bytes, which it only logs.

  TensorStore 0.1.86 does not free the lists of its answer, 17 KiB a checkpoint.
  """
  import tensorstore  # Slow to import, as Orbax is.

  name = 'experimental_collect_matching_metrics'
  collect = getattr(tensorstore, name)
  setattr(tensorstore, name, lambda *args, **kwargs: [])
  try:
    yield
  finally:
    setattr(tensorstore, name, collect)


def _but_of_closed_loops(show: Callable[..., Any]) -> Callable[..., Any]:
  """A `sys.unraisablehook` without what TensorStore's threads raise after a failure.

  Each write that was under way tells the event loop, which Orbax has closed by then.
  """

  def hook(raised: Any) -> None:
    e = raised.exc_value
    if not (isinstance(e, RuntimeError) and str(e) == 'Event loop is closed'):
      show(raised)

  return hook


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Keeps the log of Orbax, and errors of its threads, from stderr."""

  def not_orbax(record):
    return 'orbax' not in pathlib.Path(record.pathname).parts

  logger, shown = logging.get_absl_logger(), sys.unraisablehook
  logger.addFilter(not_orbax)
  sys.unraisablehook = of_threads = _but_of_closed_loops(shown)
  try:
    with _without_metrics():
      yield
  except Exception:
    shown = of_threads  # They may raise it until the process ends.
    raise
  finally:
    logger.removeFilter(not_orbax)
    sys.unraisablehook = shown
