"""Scalars of a run for TensorBoard."""

import importlib.util
import pathlib
from typing import Any

from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.callbacks.events import RoundEnd, Start
from fesem_jax.run.callbacks.logged_runs import scalars
from fesem_jax.utils import processes
from fesem_jax.utils.errors import UserError


class TensorBoard(Callback):
  """Writes every number of the records to `workdir/tensorboard/`, by round.

  A resumed run replaces the numbers of rounds that it repeats.

  Raises:
    UserError: if tensorboardX is not installed.
  """

  def __init__(self) -> None:
    if importlib.util.find_spec('tensorboardX') is None:
      raise UserError(
        "`tensorboard` needs tensorboardX: pip install 'fesem_jax[plots]'."
      )
    self._folder: pathlib.Path | None = None
    self._board: Any = None

  def on_start(self, start: Start) -> None:
    """Sets the folder."""
    if start.workdir is not None and processes.is_first():
      self._folder = start.workdir / 'tensorboard'

  def on_round_end(self, event: RoundEnd) -> None:
    """Writes the round's numbers; they are on disk when this returns."""
    if self._folder is None:
      return
    if self._board is None:
      import tensorboardX  # An optional dependency.

      # The default file name contains the second of its creation, so a run that is
      # resumed within that second would replace the file of earlier rounds.
      self._board = tensorboardX.SummaryWriter(
        str(self._folder), purge_step=event.number, filename_suffix=f'.{event.number}'
      )
    for name, value in scalars(event.record):
      self._board.add_scalar(name, value, event.number)
    self._board.flush()

  def close(self, error: BaseException | None) -> None:
    """Closes the file."""
    if self._board is not None:
      self._board.close()
