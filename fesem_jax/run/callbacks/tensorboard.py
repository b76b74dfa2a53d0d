"""Scalars of a run for TensorBoard."""

import time
from collections.abc import Sequence
from typing import Any

from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.events import RoundEnd, Start
from fesem_jax.run.callbacks.logged_runs import scalars
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes


class TensorBoard(Callback):
  """Writes every number of the records to `workdir/tensorboard/`, by round.

  A resumed run writes those of all rounds again, which replace the earlier ones: the
  run may have begun without this callback.
  """

  def __init__(self) -> None:
    import tensorboardX  # noqa: F401 - an optional dependency: not missed later.

    self._start: Start | None = None
    self._file: Any = None

  def on_start(self, start: Start) -> None:
    """Keeps the run for the first call of `on_round_end`."""
    if start.workdir is not None and processes.is_first():
      self._start, self._file = start, None

  def on_round_end(self, event: RoundEnd) -> None:
    """Writes the round's numbers; they are on disk when this returns."""
    if self._start is None:
      return
    if self._file is None:
      for record in self._begin(self._start, event.number):
        self._write(record['round'], record)
    self._write(event.number, event.record)
    self._file.flush()

  def close(self, error: BaseException | None) -> None:
    """Closes the file."""
    if self._file is not None:
      self._file.close()

  def _begin(self, start: Start, number: int) -> Sequence[Record]:
    """Opens a file of its own for this call; returns the records of earlier rounds."""
    # Not SummaryWriter, whose thread writes some numbers only with the next round.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    assert start.workdir is not None
    folder = start.workdir / 'tensorboard'
    folder.mkdir(parents=True, exist_ok=True)
    # Files of one second differ by the round, and sort by it.
    self._file = EventsWriter(str(folder / 'events'), f'.{number:09}')
    first = start.records[0]['round'] if start.records else number
    began = SessionLog(status=SessionLog.START)  # Later rounds before it do not count.
    self._file.write_event(Event(wall_time=time.time(), step=first, session_log=began))
    return start.records

  def _write(self, number: int, record: Record) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import Summary, scalar

    summary = Summary()
    for name, value in scalars(record):
      summary.MergeFrom(scalar(name, value))
    self._file.write_event(Event(wall_time=time.time(), step=number, summary=summary))
