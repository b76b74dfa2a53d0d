"""Corruptions of images at five strengths, as those of CIFAR-10-C.

Hendrycks and Dietterich, 2019; constants of github.com/hendrycks/robustness,
ImageNet-C/create_c/make_cifar_c.py, commit ca36008. Bytes are rounded, not cut.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check

_BLOCK = 2048  # Images at once, which bounds memory.

Array = np.ndarray
Generator = np.random.Generator


def _gaussian_blur(x: Array, c: float, rng: Generator) -> Array:
  from scipy import ndimage  # Slow to import.

  return ndimage.gaussian_filter(x, (0, c, c, 0), mode='nearest')


def _defocus_blur(x: Array, c: tuple[float, float], rng: Generator) -> Array:
  """A disk of a radius, whose edge is smoothed by a Gaussian of three pixels."""
  from scipy import ndimage  # Slow to import.

  radius, smoothing = c
  at = np.arange(-3, 4)
  disk = (at[:, None] ** 2 + at**2 <= radius**2).astype(np.float32)
  taps = np.exp(-(np.array([-1.0, 0.0, 1.0]) ** 2) / (2 * smoothing**2))
  taps = (taps / taps.sum()).astype(np.float32)
  kernel = disk / disk.sum()
  for axis in (0, 1):
    kernel = ndimage.correlate1d(kernel, taps, axis, mode='constant')
  return ndimage.correlate(x, kernel[None, :, :, None], mode='mirror')


def _brightness(x: Array, c: float, rng: Generator) -> Array:
  """Adds to the value of HSV, the largest channel; hue and saturation stay."""
  value = x.max(axis=-1, keepdims=True)
  brighter = np.clip(value + c, 0, 1)
  return np.where(value > 0, x * (brighter / np.maximum(value, 1e-12)), brighter)


def _impulse_noise(x: Array, c: float, rng: Generator) -> Array:
  """A share c of all values is replaced, half of them by 0 and half by 1."""
  draws = rng.random(x.shape, np.float32)
  return np.where(draws < c / 2, 0, np.where(draws < c, 1, x))


def _normal(x: Array, rng: Generator) -> Array:
  return rng.standard_normal(x.shape, np.float32)


def _mean(x: Array) -> Array:
  return x.mean(axis=(1, 2), keepdims=True)


# Name -> what it does to pixels [N, H, W, C] in [0, 1], and its number at strengths 1
# to 5.
_CORRUPTIONS: Mapping[str, tuple[Callable[..., Array], tuple[Any, ...]]] = {
  'gaussian_noise': (
    lambda x, c, rng: x + c * _normal(x, rng), (0.04, 0.06, 0.08, 0.09, 0.10),
  ),
  'defocus_blur': (
    _defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
  ),
  'contrast': (
    lambda x, c, rng: (x - _mean(x)) * c + _mean(x), (0.75, 0.5, 0.4, 0.3, 0.15),
  ),
  'brightness': (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
  'shot_noise': (lambda x, c, rng: rng.poisson(x * c) / c, (500, 250, 100, 75, 50)),
  'impulse_noise': (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
  'gaussian_blur': (_gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
  'speckle_noise': (
    lambda x, c, rng: x + c * x * _normal(x, rng), (0.06, 0.1, 0.12, 0.16, 0.2),
  ),
}  # fmt: skip

NAMES = ('none', *_CORRUPTIONS)


def corrupted(
  x: Array, name: str, strength: int, scale: float, rng: Generator
) -> Array:
  """Images [N, H, W] or [N, H, W, C] with a corruption of `NAMES`."""
  ranges.check_choice('groups', name, NAMES)
  if name == 'none':
    return x
  change, constants = _CORRUPTIONS[name]
  out = np.empty_like(x)
  for first in range(0, len(x), _BLOCK):
    rows = slice(first, first + _BLOCK)
    pixels = x[rows].astype(np.float32) * np.float32(scale)
    valid = x.ndim > 2 and pixels.min() >= 0 and pixels.max() <= 1 + 1e-6
    check(valid, 'partition: corrupted needs images of pixels in [0, 1]; see scale')
    image = pixels.reshape(*pixels.shape[:3], -1)
    new = np.clip(change(image, constants[strength - 1], rng), 0, 1) / scale
    out[rows] = (np.round(new) if x.dtype == np.uint8 else new).reshape(pixels.shape)
  return out
