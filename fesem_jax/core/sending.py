"""Messages of clients to the server: their models, with noise or compressed.

A function of one client `(key, start, trained) -> sent` stands between its training and
the sums of the server: noise for privacy, compression, attacks. Every method whose
clients send one model a round takes it, with `local_training(..., sends=...)`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import prng_streams
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import check

# (key of the client in the round, model that it received, model that it trained) ->
# the model that the server gets. All three have the same arrays: those that the server
# sent and that learn.
OfClient = Callable[[jax.Array, Params, Params], Params]


class Privacy(NamedTuple):
  """Clipping and Gaussian noise; see `training.privacy.differential_privacy`."""

  clip: float  # L2 norm that no client's change exceeds
  noise_multiplier: float  # standard deviation of the noise in units of `clip`
  delta: float  # of (epsilon, delta); 0 computes no epsilon
  where: str  # 'client' or 'server'


class Sends(NamedTuple):
  """A function of what a client trained, and the bytes of its result.

  Attributes:
    of_client: see `OfClient`; None sends the model as it was trained.
    num_bytes: number of float32 numbers of a model -> bytes of what is sent in its
      place; None is 4 bytes each.
    privacy: the noise in what is sent, or in the server's sums; None is none.
    named: options that made it, for messages.
    residual: whether a client adds what it has not sent to its next change, before
      `of_client`; see `wrappers.with_client_memory`.
    before_residual: what a client makes of its model before it adds its residual, such
      as clipping and noise for privacy; None is nothing.
  """

  of_client: OfClient | None = None
  num_bytes: Callable[[int], float] | None = None
  privacy: Privacy | None = None
  named: str = 'sends'
  residual: bool = False
  before_residual: OfClient | None = None

  @property
  def server(self) -> Privacy | None:
    """The noise of the server's sums, if there is any."""
    privacy = self.privacy
    return privacy if privacy is not None and privacy.where == 'server' else None


def chained(*each: Sends) -> Sends:
  """One after the other, e.g. noise and then compression.

  The bytes are those of the last, and at most one of them adds noise for privacy.

  Raises:
    UserError: if two of them do, or another one goes before the noise.
  """
  noisy = any(s.privacy is not None for s in each[1:])
  check(not noisy, 'dp: must come first of what is chained, and once')
  steps = [
    (function, s.residual and function is s.of_client)
    for s in each
    for function in (s.before_residual, s.of_client)
    if function is not None
  ]
  first = next((i for i, (_, residual) in enumerate(steps) if residual), 0)
  functions = [(number, function) for number, (function, _) in enumerate(steps)]
  return Sends(
    _composed(functions[first:]),
    each[-1].num_bytes,
    each[0].privacy,
    ' and '.join(s.named for s in each),
    any(s.residual for s in each),
    _composed(functions[:first]),
  )


def _composed(functions: Sequence[tuple[int, OfClient]]) -> OfClient | None:
  """Functions one after the other, each with a key folded from its number."""
  if not functions:
    return None

  def of_client(key: jax.Array, start: Params, trained: Params) -> Params:
    for number, function in functions:
      trained = function(jax.random.fold_in(key, number), start, trained)
    return trained

  return of_client


def sent_by_client(
  sends: Sends, key: jax.Array, start: Params, trained: Params
) -> Params:
  """The model that one client sends; `key` is its own in this round.

  Raises `UserError` if it is not of the arrays that were trained.
  """
  if sends.of_client is None:
    return trained
  key = prng_streams.fold(key, prng_streams.SENDING)
  if sends.before_residual is not None:
    trained = sends.before_residual(key, start, trained)
  sent = sends.of_client(key, start, trained)
  same = _kinds(sent) == _kinds(trained)
  check(same, f'{sends.named}: must return arrays of the same names, shapes and dtypes')
  return sent


def _kinds(params: Params) -> Any:
  leaves, structure = jax.tree.flatten(params)
  return structure, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]
