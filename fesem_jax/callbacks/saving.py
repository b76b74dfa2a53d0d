"""Records and checkpoints, from which a run resumes."""

from collections.abc import Callable
from typing import Any

from fesem_jax.callbacks.callback import Callback
from fesem_jax.callbacks.events import RoundEnd


class SaveRecords(Callback):
  """Passes the record of each round to a writer.

  Args:
    write: appends a record to those of the run and to its file.
  """

  def __init__(self, write: Callable[[dict[str, Any]], None]):
    self._write = write

  def on_round_end(self, event: RoundEnd) -> None:
    """Adds the round's record."""
    self._write(event.record)


class SaveCheckpoints(Callback):
  """Saves the state every `every` rounds and after the last one.

  Args:
    save: (rounds done, state) -> None; writes a checkpoint.
    every: number of rounds; 0 saves after the last one only.
  """

  def __init__(self, save: Callable[[int, Any], None], every: int):
    self._save, self._every = save, every

  def on_round_end(self, event: RoundEnd) -> None:
    """Saves the state if a checkpoint is due."""
    due = self._every and event.number % self._every == 0
    if event.number and (event.last or due):
      self._save(event.number, event.state)
