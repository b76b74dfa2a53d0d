"""Changes that clients have not sent yet, which they add to what they send next.

See `wrappers.with_error_feedback`.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.extend.core import get_opaque_trace_state

from fesem_jax.core.sending import Sends
from fesem_jax.core.types import Params


class Residuals:
  """Changes that the clients of a round have not sent; see `residuals`."""

  def __init__(self, rows: Params):
    self.rows = rows  # [S, ...] of the whole model
    self.uses = 0  # how often the clients have sent a model
    self._traced: list[int] = []  # of one client, as often as it was traced
    self._trace = get_opaque_trace_state(convention='flax')

  def beside(self, state: Any, kept: Any, own: Params, unsent: list[Params]) -> Any:
    """The state that the method gives a client, if it has one, and its residual.

    `own` is its residual, and `unsent` what it is after each model that it sent.
    """
    self._traced.append(len(unsent))
    return None if state is None else kept, [own, *unsent][-1]

  def kept(self, both: tuple[Any, Params]) -> Any:
    """The part of the method in what `beside` gave; `rows` take the rest."""
    same = self._trace == get_opaque_trace_state(convention='flax')
    # Rows cannot leave a branch or a loop.
    self.rows = both[1] if same else self.rows
    self.uses += max(self._traced, default=0) if same else 2
    self._traced.clear()
    return both[0]


# Those of the round that is traced. Not an argument: methods would have to hand them on
# to each training and their new values back, and one that did not would lose what its
# clients have not sent.
OF_ROUND: contextvars.ContextVar[Residuals | None] = contextvars.ContextVar(
  'residuals', default=None
)


@contextlib.contextmanager
def residuals(rows: Params) -> Iterator[Residuals]:
  """Within the block, the clients of a round add `rows` [S, ...] to what they send.

  It yields what holds the rows, which are what clients have not sent once they have
  sent their models.
  """
  held = Residuals(rows)
  token = OF_ROUND.set(held)
  try:
    yield held
  finally:
    OF_ROUND.reset(token)


def with_residual(sends: Sends, residual: Params, left: list[Params]) -> Sends:
  """The `Sends` of a client that adds its `residual`; the new one goes to `left`.

  The residual is of the whole model. Where only some parameters are sent, `trained` has
  them by their paths; the others keep theirs.
  """

  def of_client(key: jax.Array, start: Params, trained: Params) -> Params:
    assert sends.of_client is not None
    some = isinstance(trained, dict) and trained.keys() != residual.keys()
    flat = flatten_dict(residual) if some else {}
    own = {path: flat[path] for path in trained} if some else residual
    whole = jax.tree.map(lambda w, e: w + e, trained, own)
    sent = sends.of_client(key, start, whole)
    new = jax.tree.map(lambda w, x: w - x, whole, sent)
    left.append(unflatten_dict(flat | new) if some else new)
    return sent

  return sends._replace(of_client=of_client)
