"""Noise and compression of models on their way to the server, from flags."""

from typing import Any

from fesem_jax.core.sending import Sends, chained
from fesem_jax.training.compression import compression
from fesem_jax.training.privacy import differential_privacy
from fesem_jax.utils.errors import UserError, argument


def build(config: dict[str, Any]) -> Sends | None:
  """The `Sends` of a whole configuration; None if models are sent as trained.

  Raises `UserError` on flags out of range, or that lack another.
  """
  private, compress = _private(config), None
  if config['compress']:
    compress = compression(config['compress'], error_feedback=config['error_feedback'])
  each = [sends for sends in (private, compress) if sends is not None]
  return chained(*each) if each else None


def _private(config: dict[str, Any]) -> Sends | None:
  """The noise of --dp; its other flags need it."""
  if not config['dp']:
    for name in ('dp_clip', 'dp_noise_multiplier'):
      if config[name]:
        raise UserError(
          f'{argument(name, config[name])} needs `dp`: choose `dp=server`, whose noise '
          'the server adds to sums, or `dp=client`.'
        )
    return None
  alike = config.get('weighting', 'uniform') == 'uniform'
  if config['dp'] == 'server' and not alike:
    raise UserError(
      f'{argument("dp", config["dp"])} needs clients that weigh alike, as their '
      'numbers of examples are not bounded: choose `weighting=uniform`.'
    )
  if not config['dp_clip']:
    raise UserError(
      f'{argument("dp", config["dp"])} needs `dp_clip`, the L2 norm to which the '
      'change of a client is clipped, such as its median without clipping.'
    )
  return differential_privacy(
    config['dp_clip'],
    config['dp_noise_multiplier'],
    where=config['dp'],
    delta=config['dp_delta'],
  )
