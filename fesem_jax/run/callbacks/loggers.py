"""Loggers: callbacks that send the numbers of a run to other programs."""

import os
import pathlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from fesem_jax.run.callbacks.callback import Callback, Event
from fesem_jax.utils import processes
from fesem_jax.utils.ranges import check_choice

Write = Callable[[int, dict[str, float]], Any]  # of a round, numbers by their path
Opened = tuple[Write, Callable[[BaseException | None], Any]]  # and what closes it


class Logger(Callback):
  """Writes every number of the records, by round, in the first process.

  A resumed run writes those of the earlier rounds again. Entries of callbacks behind it
  in the list are missing.

  Args:
    write: (number of the round, numbers by path), e.g. (3, {'deployed/micro_f1': 0.9}).
    opened: (first event) -> such a function, and one that takes the error of the run,
      or None, after its end; called before the first round that is written.
  """

  def __init__(self, write: Any = None, opened: Any = None):
    self._opened = opened or (lambda event: (write, lambda error: None))
    self._functions: Opened | None = None

  def on_start(self, event: Event) -> None:
    """Keeps the run for its first round."""
    self._start, self._functions = event, None

  def on_round(self, event: Event) -> None:
    """Writes the round's numbers."""
    if not processes.is_first():
      return
    records = [event.record]
    if self._functions is None:
      self._functions = self._opened(self._start)
      records = [*event.records, event.record]
    for record in records:
      self._functions[0](record['round'], dict(scalars(record)))

  def close(self, error: BaseException | None) -> None:
    """Closes what was opened."""
    if self._functions is not None:
      self._functions[1](error)


def tensorboard() -> Logger:
  """Writes to `workdir/tensorboard/`, or to `tensorboard/` without a workdir."""
  import tensorboardX  # An optional dependency.

  def opened(event: Event) -> Opened:
    folder = (event.workdir or pathlib.Path()) / 'tensorboard'
    # Its rounds replace those of earlier files.
    writer = tensorboardX.SummaryWriter(str(folder), purge_step=0)

    def write(number: int, numbers: dict[str, float]) -> None:
      for name, value in numbers.items():
        writer.add_scalar(name, value, number)
      writer.flush()

    return write, lambda error: writer.close()

  return Logger(opened=opened)


def wandb() -> Logger:
  """Writes to `workdir/wandb/`, for `wandb sync`; sends with WANDB_MODE=online."""
  os.environ.setdefault('WANDB_MODE', 'offline')
  os.environ.setdefault('WANDB_ERROR_REPORTING', 'false')
  import wandb as package  # An optional dependency, and slow to import.

  def opened(event: Event) -> Opened:
    name, folder = secrets.token_hex(8), event.workdir
    if folder is not None:
      path = folder / 'wandb_run.txt'
      if not path.exists():
        path.write_text(name)
      name = path.read_text()
    run = package.init(
      project=os.environ.get('WANDB_PROJECT', 'fesem_jax'),
      name=None if folder is None else '/'.join(folder.absolute().parts[-2:]),
      id=name,
      resume='allow',
      reinit='create_new',  # Leaves other runs of the caller open.
      dir=folder,
      config={'seed': event.seed} | (event.config or {}),
      settings=package.Settings(silent=True, console='off'),
    )
    write: Write = lambda number, numbers: run.log(numbers, step=number)  # noqa: E731
    return write, lambda error: run.finish(exit_code=0 if error is None else 1)

  return Logger(opened=opened)


LOGGERS: Mapping[str, Callable[[], Logger]] = MappingProxyType(
  {'tensorboard': tensorboard, 'wandb': wandb}
)


def build(names: Iterable[str]) -> list[Logger]:
  """The loggers with these names, keys of `LOGGERS`, each once."""
  for name in names:
    check_choice('log_to', name, tuple(LOGGERS))
  return [LOGGERS[name]() for name in dict.fromkeys(names)]


def scalars(value: Any, prefix: str = '') -> Iterator[tuple[str, float]]:
  """Every number of a nested record except the round, as ('deployed/micro_f1', 0.9)."""
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from scalars(inner, f'{prefix}/{key}' if prefix else key)
  elif isinstance(value, list):
    for i, inner in enumerate(value):
      yield from scalars(inner, f'{prefix}/{i}')
  elif isinstance(value, int | float) and prefix != 'round':
    yield prefix, value
