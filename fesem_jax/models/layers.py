"""Layers that the networks of this package are made of."""

import functools

import flax.linen as nn
import jax

from fesem_jax.models import conv, dense_layers

Dense = functools.partial(nn.Dense, dot_general=dense_layers.dot_general)


class Conv(nn.Module):
  """`conv.conv2d` with a bias.

  Attributes:
    features: channels that it gives.
    window: side of its square kernel.
    padding: see `conv.conv2d`.
    method: see `conv.conv2d`.
    strides: of the window, the same along both axes.
    use_bias: whether there is a bias.
  """

  features: int
  window: int
  padding: conv.Padding = 'SAME'
  method: str | None = None
  strides: int = 1
  use_bias: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    shape = (self.window, self.window, x.shape[-1], self.features)
    kernel = self.param('kernel', nn.initializers.lecun_normal(), shape)
    y = conv.conv2d(
      x,
      kernel,
      strides=(self.strides, self.strides),
      padding=self.padding,
      method=self.method,
    )
    if not self.use_bias:
      return y
    bias = self.param('bias', nn.initializers.zeros_init(), (self.features,))
    return y + bias.reshape(1, 1, 1, -1)


def with_channels(x: jax.Array) -> jax.Array:
  """Images [B, H, W, C], from [B, H, W] where they are gray."""
  return x[..., None] if x.ndim == 3 else x
