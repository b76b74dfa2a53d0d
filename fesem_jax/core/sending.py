"""Messages of clients to the server: their models, with noise or compressed."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import prng_streams
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import check

# (key of the client in the round, received model, trained model) -> model that the
# server gets, all of the same arrays: those that the server sent and that learn.
Transform = Callable[[jax.Array, Params, Params], Params]


class Privacy(NamedTuple):
  """Clipping and Gaussian noise; see `training.privacy.differential_privacy`."""

  clip: float  # L2 norm that no client's change exceeds
  noise_multiplier: float  # standard deviation of the noise in units of `clip`
  delta: float  # of (epsilon, delta); 0 computes no epsilon
  where: str  # 'client' or 'server'


class Sends(NamedTuple):
  """A function of the trained model of a client, and the bytes of its result.

  Attributes:
    transform: see `Transform`; None sends the model as it was trained.
    num_bytes: float32 numbers of a model -> bytes sent; None is 4 each.
    privacy: noise in messages or in the server's sums; None is none.
    named: options that built it, for messages.
    residual: whether a client adds the unsent part of a change to its next one, before
      `transform`; see `wrappers.with_client_memory`.
    before_residual: applied before the residual is added, such as noise, or None.
  """

  transform: Transform | None = None
  num_bytes: Callable[[int], float] | None = None
  privacy: Privacy | None = None
  named: str = 'sends'
  residual: bool = False
  before_residual: Transform | None = None

  @property
  def server(self) -> Privacy | None:
    """The noise of the server's sums, or None."""
    privacy = self.privacy
    return privacy if privacy is not None and privacy.where == 'server' else None


def chained(*sends: Sends) -> Sends:
  """Chains several `Sends`, e.g. noise, then compression, whose bytes count.

  Raises `UserError` unless noise for privacy comes first, and once.
  """
  noisy = any(s.privacy is not None for s in sends[1:])
  check(not noisy, 'dp: must come first of what is chained, and once')
  steps = [
    (function, s.residual and function is s.transform)
    for s in sends
    for function in (s.before_residual, s.transform)
    if function is not None
  ]
  first = next((i for i, (_, residual) in enumerate(steps) if residual), 0)
  functions = [(number, function) for number, (function, _) in enumerate(steps)]
  return Sends(
    _composed(functions[first:]),
    sends[-1].num_bytes,
    sends[0].privacy,
    ' and '.join(s.named for s in sends),
    any(s.residual for s in sends),
    _composed(functions[:first]),
  )


def _composed(functions: Sequence[tuple[int, Transform]]) -> Transform | None:
  """Functions one after the other, each with a key folded from its number."""
  if not functions:
    return None

  def transform(key: jax.Array, start: Params, trained: Params) -> Params:
    for number, function in functions:
      trained = function(jax.random.fold_in(key, number), start, trained)
    return trained

  return transform


def sent_by_client(
  sends: Sends, key: jax.Array, start: Params, trained: Params
) -> Params:
  """The model that one client sends; `UserError` on arrays of other shapes."""
  if sends.transform is None:
    return trained
  key = prng_streams.fold(key, prng_streams.SENDING)
  if sends.before_residual is not None:
    trained = sends.before_residual(key, start, trained)
  sent = sends.transform(key, start, trained)
  same = _kinds(sent) == _kinds(trained)
  check(same, f'{sends.named}: must return arrays of the same names, shapes and dtypes')
  return sent


def _kinds(params: Params) -> Any:
  leaves, structure = jax.tree.flatten(params)
  return structure, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]
