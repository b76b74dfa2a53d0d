"""Loggers: callbacks that send the numbers of a run to other programs."""

import os
import pathlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from fesem_jax.run.callbacks.callback import Callback, Event
from fesem_jax.utils import processes
from fesem_jax.utils.ranges import check_choice


class Logger(Callback):
  """Writes every number of the records, by round, in the first process.

  A resumed run writes those of the earlier rounds again. Entries of callbacks behind it
  in the list are missing. Subclasses open their destination in `open`.

  Args:
    write: (number of the round, numbers by path), e.g. (3, {'deployed/micro_f1': 0.9}).
  """

  def __init__(self, write: Callable[[int, dict[str, float]], Any]):
    self.write = write

  def open(self, event: Event) -> None:
    """Called before the first round that is written."""

  def on_start(self, event: Event) -> None:
    """Keeps the run for its first round."""
    self._start, self.is_open = event, False

  def on_round(self, event: Event) -> None:
    """Writes the round's numbers."""
    if not processes.is_first():
      return
    records = [event.record]
    if not self.is_open:
      self.open(self._start)
      self.is_open = True
      records = [*event.records, event.record]
    for record in records:
      self.write(record['round'], dict(scalars(record)))


class TensorBoard(Logger):
  """Writes to `workdir/tensorboard/`, or to `tensorboard/` without a workdir."""

  def __init__(self) -> None:
    import tensorboardX  # An optional dependency.

    self._new_writer = tensorboardX.SummaryWriter
    super().__init__(self._add)

  def open(self, event: Event) -> None:
    """Opens a file, whose rounds replace those of earlier files."""
    folder = (event.workdir or pathlib.Path()) / 'tensorboard'
    self._writer = self._new_writer(str(folder), purge_step=0)

  def _add(self, number: int, numbers: dict[str, float]) -> None:
    for name, value in numbers.items():
      self._writer.add_scalar(name, value, number)
    self._writer.flush()

  def close(self, error: BaseException | None) -> None:
    """Closes the file."""
    if self.is_open:
      self._writer.close()


class WeightsAndBiases(Logger):
  """Writes to `workdir/wandb/`, for `wandb sync`; sends with WANDB_MODE=online."""

  def __init__(self) -> None:
    os.environ.setdefault('WANDB_MODE', 'offline')
    os.environ.setdefault('WANDB_ERROR_REPORTING', 'false')
    import wandb  # An optional dependency, and slow to import.

    self._wandb = wandb
    super().__init__(lambda number, numbers: self._run.log(numbers, step=number))

  def open(self, event: Event) -> None:
    """Begins a run of Weights & Biases, or resumes it."""
    self._run = self._wandb.init(
      project=os.environ.get('WANDB_PROJECT', 'fesem_jax'),
      name=_name(event.workdir),
      id=_id(event.workdir),
      resume='allow',
      reinit='create_new',  # Leaves other runs of the caller open.
      dir=event.workdir,
      config={'seed': event.seed} | (event.config or {}),
      settings=self._wandb.Settings(silent=True, console='off'),
    )

  def close(self, error: BaseException | None) -> None:
    """Ends the run, marked as failed after an error."""
    if self.is_open:
      self._run.finish(exit_code=0 if error is None else 1)


class MLflow(Logger):
  """Writes to `workdir/mlflow.db`, or to MLFLOW_TRACKING_URI if it is set."""

  def __init__(self) -> None:
    os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')
    import mlflow  # An optional dependency, and slow to import.

    self._mlflow = mlflow
    super().__init__(self._add)

  def open(self, event: Event) -> None:
    """Creates a run of MLflow."""
    local = f'sqlite:///{(event.workdir or pathlib.Path()).absolute()}/mlflow.db'
    self._mlflow.set_tracking_uri(os.environ.get('MLFLOW_TRACKING_URI', local))
    self._mlflow.set_experiment(os.environ.get('MLFLOW_EXPERIMENT_NAME', 'fesem_jax'))
    run = self._mlflow.start_run(run_name=_name(event.workdir), nested=True)
    self._id = run.info.run_id
    options = {'seed': event.seed} | (event.config or {})
    self._mlflow.log_params({key: str(x)[:500] for key, x in options.items()})

  def _add(self, number: int, numbers: dict[str, float]) -> None:
    keyed = {re.sub(r'[^\w\-./: ]', '_', name): x for name, x in numbers.items()}
    self._mlflow.log_metrics(keyed, number, run_id=self._id)

  def close(self, error: BaseException | None) -> None:
    """Ends the run, marked as failed after an error."""
    if self.is_open:
      self._mlflow.end_run('FAILED' if error else 'FINISHED')


LOGGERS: Mapping[str, Callable[[], Logger]] = MappingProxyType(
  {'tensorboard': TensorBoard, 'wandb': WeightsAndBiases, 'mlflow': MLflow}
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


def _name(workdir: pathlib.Path | None) -> str | None:
  """The name of a run in loggers: the last two folders of its path."""
  return None if workdir is None else '/'.join(workdir.absolute().parts[-2:])


def _id(workdir: pathlib.Path | None) -> str:
  """The id of the run of Weights & Biases of a workdir; of a new run without one."""
  if workdir is None:
    return secrets.token_hex(8)
  path = workdir / 'wandb_run.txt'
  if not path.exists():
    path.write_text(secrets.token_hex(8))
  return path.read_text()
