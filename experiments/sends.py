"""Noise and compression of models on their way to the server, from flags."""

from typing import Any

from fesem_jax.core.sending import Sends, chained
from fesem_jax.training.compression import compression
from fesem_jax.training.privacy import differential_privacy
from fesem_jax.utils.errors import check


def build(config: dict[str, Any]) -> Sends | None:
  """The `Sends` of a whole configuration; None if models are sent as trained.

  Raises `UserError` on flags out of range, or that lack another.
  """
  private = _private(config)
  changes = [] if private is None else [private]
  if config['compress']:
    changes.append(compression(config['compress']))
  return chained(*changes) if changes else None


def _private(config: dict[str, Any]) -> Sends | None:
  """The noise of --dp; its other flags need it."""
  if not config['dp']:
    for name in ('dp_clip', 'dp_noise_multiplier'):
      check(not config[name], f'{name}: needs dp; choose dp=server or dp=client')
    return None
  alike = config.get('weighting', 'uniform') == 'uniform'
  check(config['dp'] != 'server' or alike, 'dp: server needs weighting=uniform')
  check(config['dp_clip'], 'dp: needs dp_clip, the L2 norm of a clipped change')
  return differential_privacy(
    config['dp_clip'],
    config['dp_noise_multiplier'],
    where=config['dp'],
    delta=config['dp_delta'],
  )
