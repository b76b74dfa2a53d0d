"""Layers that the networks of this package are made of."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from fesem_jax.models import conv, dense_layers

# With so many tokens or fewer, a product with one-hot rows is faster than looking rows
# up: the gradient of looking up is a scatter.
_FEW = 1024
# What the table of vectors is called.
EMBEDDING = 'embedding'

Dense = functools.partial(nn.Dense, dot_general=dense_layers.dot_general)


class Conv(nn.Module):
  """`conv.conv2d` with a bias."""

  features: int  # output channels
  window: int  # side of the square kernel
  padding: conv.Padding = 'SAME'  # see `conv.conv2d`
  strides: int = 1  # along both axes
  use_bias: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    shape = (self.window, self.window, x.shape[-1], self.features)
    kernel = self.param('kernel', nn.initializers.lecun_normal(), shape)
    strides = self.strides, self.strides
    y = conv.conv2d(x, kernel, strides=strides, padding=self.padding)
    if not self.use_bias:
      return y
    bias = self.param('bias', nn.initializers.zeros_init(), (self.features,))
    return y + bias.reshape(1, 1, 1, -1)


class GroupNorm(nn.Module):
  """`nn.GroupNorm` of images, up to rounding, faster from sums of channels."""

  groups: int  # of channels with mean and variance in common; they divide the channels
  epsilon: float = 1e-5  # that is added to the variance, by default as in PyTorch

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    batch, channels = x.shape[0], x.shape[-1]
    scale = self.param('scale', nn.initializers.ones_init(), (channels,))
    bias = self.param('bias', nn.initializers.zeros_init(), (channels,))

    def group_means(sums: jax.Array) -> jax.Array:
      means = sums.reshape(batch, self.groups, -1).mean(axis=-1)
      return jnp.repeat(means, channels // self.groups, axis=1)

    mean = group_means(x.mean(axis=(1, 2)))
    variance = jnp.maximum(group_means((x * x).mean(axis=(1, 2))) - mean * mean, 0.0)
    times = jax.lax.rsqrt(variance + self.epsilon) * scale[None]
    added = bias[None] - mean * times
    return x * times[:, None, None] + added[:, None, None]


def with_channels(x: jax.Array) -> jax.Array:
  """Images [B, H, W, C], from [B, H, W] where they are gray."""
  return x[..., None] if x.ndim == 3 else x


class Embedding(nn.Module):
  """[B, S, width] of float32 tokens [B, S]; numbers beyond the ends are the ends."""

  vocabulary: int  # V, how many tokens there are
  width: int  # of the vectors

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    shape = (self.vocabulary, self.width)
    table = self.param(EMBEDDING, nn.linear.default_embed_init, shape)
    tokens = jnp.clip(jnp.round(x).astype(jnp.int32), 0, self.vocabulary - 1)
    if self.vocabulary <= _FEW:
      return jax.nn.one_hot(tokens, self.vocabulary, dtype=table.dtype) @ table
    return jnp.take(table, tokens, axis=0)
