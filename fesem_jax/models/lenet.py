"""LeNet-5, and the network of NIID-Bench, which is LeNet-5 without padding."""

import flax.linen as nn
import jax

from fesem_jax.models import conv
from fesem_jax.models.layers import Conv, Dense, with_channels

# LeCun et al. take digits of 28 x 28 pixels in a frame of 32 x 32.
_SIDE = 32


class Lenet(nn.Module):
  """Convolutions 5x5 with 6 and 16 channels, dense layers of 120 and 84, logits.

  ReLU and the maximum of 2x2 pixels follow each convolution. The sizes are those of
  LeCun et al. (1998): 61,706 parameters for digits and 62,006 for CIFAR-10.
  """

  num_classes: int
  # Pads images below 32 pixels by 2 on each side (LeNet-5); otherwise the `SimpleCNN`
  # of Li et al. (2022, NIID-Bench): 44,426 parameters for digits.
  framed: bool = True
  conv_method: str | None = None  # see `conv.conv2d`

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = with_channels(x)
    framed = self.framed and min(x.shape[1:3]) < _SIDE
    first: conv.Padding = ((2, 2), (2, 2)) if framed else 'VALID'
    for i, (features, padding) in enumerate(((6, first), (16, 'VALID'))):
      layer = Conv(features, 5, padding, self.conv_method, name=f'conv{i}')
      # ReLU after the maximum gives the same, from a quarter of the numbers.
      x = nn.relu(conv.max_pool(layer(x)))
    x = x.reshape(x.shape[0], -1)
    for i, width in enumerate((120, 84)):
      x = nn.relu(Dense(width, name=f'dense{i}')(x))
    return Dense(self.num_classes, name='logits')(x)
