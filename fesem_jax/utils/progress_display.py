"""What a display of progress does."""

import contextlib

from fesem_jax.utils.progress_text import Rounds


class Display:
  """A display of progress; this one shows nothing."""

  def waiting_for(self, what: str) -> contextlib.AbstractContextManager[None]:
    """Shows the operation of a block, and its duration if it is long."""
    return contextlib.nullcontext()

  def within_a_round(self, what: str) -> contextlib.AbstractContextManager[None]:
    """Shows the operation of a block without a separate line for it."""
    return contextlib.nullcontext()

  def rounds(self, rounds: Rounds, over: bool = False) -> None:
    """Shows the progress of the rounds; `over` after the last one."""

  def close(self) -> None:
    """Ends the display."""
