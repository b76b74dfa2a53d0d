"""Messages of clients to the server: their models, with noise or compressed.

A function of one client `(key, start, trained) -> sent` stands between its training and
the sums of the server: noise for privacy, compression, attacks. Every method whose
clients send one model a round takes it, with `local_training(..., sends=...)`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import prng_streams
from fesem_jax.core.types import Model, Params
from fesem_jax.utils.errors import UserError, argument
from fesem_jax.utils.notices import warn_once

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
      `of_client`; see `wrappers.with_error_feedback`.
    overshoots: whether a number that is sent may lie outside of the old and the new
      one, by which variances would become negative.
    before_residual: what a client makes of its model before it adds its residual, such
      as clipping and noise for privacy; None is nothing.
  """

  of_client: OfClient | None = None
  num_bytes: Callable[[int], float] | None = None
  privacy: Privacy | None = None
  named: str = 'sends'
  residual: bool = False
  overshoots: bool = False
  before_residual: OfClient | None = None

  @property
  def server(self) -> Privacy | None:
    """The noise of the server's sums, if there is any."""
    privacy = self.privacy
    return privacy if privacy is not None and privacy.where == 'server' else None


def sends_of(given: Any) -> Sends | None:
  """The `Sends` that `local_training` is given; a function counts 4 bytes a number.

  Raises `UserError` if it is neither a `Sends` nor a function.
  """
  if given is None or isinstance(given, Sends):
    return given
  if not callable(given):
    raise UserError(
      f'{argument("sends")} must be a function (key, start, trained) -> sent, or a '
      f'fesem_jax.Sends; it is a {type(given).__name__}.'
    )
  return Sends(given)


def chained(*each: Sends) -> Sends:
  """One after the other, e.g. noise and then compression.

  The bytes are those of the last, and at most one of them adds noise for privacy.

  Raises:
    UserError: if two of them do, or another one goes before the noise.
  """
  if any(s.privacy is not None for s in each[1:]):
    raise UserError(
      'Noise for privacy must come first of what is chained, and once: what changes a '
      'model before it is not bounded by its clipping.'
    )
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
    any(s.overshoots for s in each),
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
  if _kinds(sent) != _kinds(trained):
    raise UserError(
      f'`{sends.named}`: the function of what clients send must return the model that '
      'the server gets, with arrays of the names, shapes and dtypes that it was given.'
    )
  return sent


def _kinds(params: Params) -> Any:
  leaves, structure = jax.tree.flatten(params)
  return structure, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]


def check_sends(sends: Sends, model: Model) -> None:
  """Warns if a function of what clients send seems to return changes of models.

  Raises `UserError` like `sent_by_client`, and on privacy or bytes that are none.
  """
  _check_privacy(sends)
  if sends.num_bytes is not None:
    _check_bytes(sends)
  start = model.init(jax.random.key(0))
  sent = jax.jit(functools.partial(sent_by_client, sends))(
    jax.random.key(0), start, start
  )
  largest = [float(jnp.abs(x).max(initial=0)) for x in jax.tree.leaves(sent)]
  moved = [float(jnp.abs(x).max(initial=0)) for x in jax.tree.leaves(start)]
  if max(largest, default=0.0) == 0 < max(moved, default=0.0):
    warn_once(
      f'`{sends.named}`: of a client that does not move, zeros are sent; if the '
      'function returns the change, it must return start + change instead.'
    )


def _check_privacy(sends: Sends) -> None:
  """Raises `UserError` if epsilon would be that of noise that nothing adds."""
  privacy = sends.privacy
  if privacy is None:
    return
  sound = isinstance(privacy, Privacy) and privacy.where in ('client', 'server')
  if not sound or not (privacy.clip > 0 and privacy.noise_multiplier >= 0):
    raise UserError(
      f'`{sends.named}`: `privacy` is {privacy!r:.90}; take that of '
      '`fj.differential_privacy(clip, noise_multiplier)`.'
    )
  if privacy.where == 'client' and sends.of_client is None:
    raise UserError(
      f'`{sends.named}`: `privacy` says that clients add noise, but there is no '
      '`of_client` that does; take `fj.differential_privacy(..., where="client")`.'
    )


def _check_bytes(sends: Sends) -> None:
  """Raises `UserError` unless `num_bytes` gives a number of bytes."""
  try:
    count = float(sends.num_bytes(1000))  # type: ignore[misc]
  except (TypeError, ValueError):
    count = -1.0
  if not 0 <= count < float('inf'):
    raise UserError(
      f'`{sends.named}`: `num_bytes` must be a function from how many float32 numbers '
      'a model has to how many bytes are sent in its place.'
    )
