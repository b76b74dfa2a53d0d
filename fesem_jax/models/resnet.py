"""Residual networks with GroupNorm or BatchNorm."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from fesem_jax.models import conv
from fesem_jax.models.layers import Conv, Dense, GroupNorm, with_channels

# As PyTorch pads, so that its weights give the same logits here.
_PADDING: conv.Padding = ((1, 1), (1, 1))


def _norm(groups: int | None, train: bool, name: str) -> nn.Module:
  """GroupNorm; or BatchNorm, with PyTorch's momentum and epsilon."""
  if groups is None:
    return nn.BatchNorm(not train, momentum=0.9, name=name)
  return GroupNorm(groups, name=name)


class Block(nn.Module):
  """Two 3x3 convolutions, each normalized, beside a shortcut."""

  features: int  # channels that it gives
  strides: int  # of the first convolution, and of the shortcut
  groups: int | None  # of each GroupNorm; None is BatchNorm
  # Shortcuts between sizes: a 1x1 convolution and a norm (option B of He et al.), or
  # zeros for new channels and every other pixel (option A).
  projected: bool

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    y = x
    for i, strides in enumerate((self.strides, 1)):
      y = Conv(self.features, 3, _PADDING, strides, False, name=f'conv{i}')(y)
      y = _norm(self.groups, train, f'norm{i}')(y)
      y = nn.relu(y) if i == 0 else y
    return nn.relu(y + self._shortcut(x, train))

  def _shortcut(self, x: jax.Array, train: bool) -> jax.Array:
    if self.strides == 1 and x.shape[-1] == self.features:
      return x
    if self.projected:
      x = Conv(self.features, 1, 'VALID', self.strides, False, name='shortcut')(x)
      return _norm(self.groups, train, 'shortcut_norm')(x)
    new = self.features - x.shape[-1]
    x = x[:, :: self.strides, :: self.strides]
    return jnp.pad(x, [(0, 0)] * 3 + [(new // 2, new - new // 2)])


class ResNet(nn.Module):
  """He et al. (2016) for small images, with BatchNorm or GroupNorm (Wu and He 2018)."""

  blocks: Sequence[int]  # number of blocks of each stage
  features: Sequence[int]  # channels of each stage; each but the first halves the sides
  num_classes: int  # L
  projected: bool  # see `Block`
  # Of each GroupNorm; they must divide the channels. None is BatchNorm.
  groups: int | None = 2

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    x = with_channels(x)
    x = Conv(self.features[0], 3, _PADDING, use_bias=False, name='conv')(x)
    x = nn.relu(_norm(self.groups, train, 'norm')(x))
    for i, (count, features) in enumerate(zip(self.blocks, self.features, strict=True)):
      for j in range(count):
        strides = 2 if i > 0 and j == 0 else 1
        name = f'stage{i}_block{j}'
        x = Block(features, strides, self.groups, self.projected, name=name)(x, train)
    return Dense(self.num_classes, name='logits')(x.mean(axis=(1, 2)))


# Depth -> blocks and channels of stages, projected. 8 and 20 are He et al.'s 6n + 2
# (75,290 and 269,722 parameters for CIFAR-10), 18 is that of kuangliu/pytorch-cifar.
SIZES = {
  8: ((1,) * 3, (16, 32, 64), False),
  20: ((3,) * 3, (16, 32, 64), False),
  18: ((2,) * 4, (64, 128, 256, 512), True),
}


def resnet(depth: int, num_classes: int, groups: int | None = 2) -> ResNet:
  """The `ResNet` of a depth in `SIZES`; `groups=None` is BatchNorm."""
  blocks, features, projected = SIZES[depth]
  return ResNet(blocks, features, num_classes, projected, groups)
