"""Images turned by an angle."""

import numpy as np

SAMPLINGS = ('linear', 'nearest')


def rotate(x: np.ndarray, degrees: float, sampling: str = 'linear') -> np.ndarray:
  """Images [N, H, W, ...] turned counterclockwise, of the same size.

  Args:
    x: square images.
    degrees: multiples of 90 are exact.
    sampling: 'linear' interpolates and continues the border: corners of another shade
      would betray the angle. 'nearest' takes the nearest pixel and fills the corners
      with 0, as torchvision and Pillow do.
  """
  quarter_turns, remainder = divmod(degrees, 90)
  if remainder == 0:
    return np.rot90(x, int(quarter_turns), axes=(1, 2))
  from scipy import ndimage  # Slow to import.

  if sampling == 'nearest':
    # 'grid-constant': half a pixel beyond the middle of the last one is of the image.
    return ndimage.rotate(
      x, degrees, (1, 2), reshape=False, order=0, mode='grid-constant'
    )
  turned = ndimage.rotate(
    x.astype(np.float32), degrees, (1, 2), reshape=False, order=1, mode='nearest'
  )
  return np.round(turned).astype(np.uint8) if x.dtype == np.uint8 else turned
