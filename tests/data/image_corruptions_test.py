"""Corruptions of images beside references of their own."""

import colorsys

import numpy as np
import pytest
from scipy import ndimage

from fesem_jax.data.partitions import image_corruptions
from fesem_jax.data.partitions.image_corruptions import corrupted
from fesem_jax.utils.errors import UserError

_RNG = np.random.default_rng(0)
_SMOOTH = ndimage.gaussian_filter(_RNG.uniform(0, 255, (6, 32, 32, 3)), (0, 2, 2, 0))
IMAGES = (128 + 4 * (_SMOOTH - _SMOOTH.mean())).clip(0, 255).astype(np.uint8)


def apply(name, strength, x=IMAGES):
  return corrupted(x, name, strength, 1 / 255, np.random.default_rng(7))


@pytest.mark.parametrize('name', image_corruptions.NAMES[1:])
def test_corruptions_keep_the_shape_and_are_repeatable(name):
  for x in (IMAGES, IMAGES[..., 0], IMAGES[:, :20]):
    actual = apply(name, 3, x)
    assert (actual.shape, actual.dtype) == (x.shape, np.uint8)
    np.testing.assert_array_equal(actual, apply(name, 3, x))
    assert (actual != x).any()
  floats = corrupted(
    IMAGES.astype(np.float32) / 255, name, 3, 1.0, np.random.default_rng(7)
  )
  assert np.abs(floats * 255 - apply(name, 3)).max() <= 0.51
  far = [np.abs(apply(name, s) - IMAGES.astype(float)).mean() for s in range(1, 6)]
  assert (np.diff(far) > 0).all()  # Stronger ones are farther away.


def test_brightness_is_of_hsv():
  for strength, c in enumerate((0.05, 0.1, 0.15, 0.2, 0.3), 1):

    def brighter(pixel, c=c):
      h, s, v = colorsys.rgb_to_hsv(*(pixel / 255.0))
      return colorsys.hsv_to_rgb(h, s, min(v + c, 1))

    expected = np.apply_along_axis(brighter, -1, IMAGES[:2]) * 255
    assert np.abs(apply('brightness', strength)[:2] - expected).max() <= 0.51


def test_blurs_and_contrast_by_their_equations():
  x = IMAGES.astype(float)
  mean = x.mean(axis=(1, 2), keepdims=True)
  assert np.abs(apply('contrast', 2) - (0.5 * x + 0.5 * mean)).max() <= 0.51
  point = np.zeros((1, 9, 9, 1), np.uint8)
  point[0, 4, 4] = 255
  at = np.arange(-4, 5)
  taps = np.exp(-(at**2) / (2 * 1.0**2))
  expected = 255 * np.outer(taps, taps) / taps.sum() ** 2
  assert np.abs(apply('gaussian_blur', 5, point)[0, :, :, 0] - expected).max() <= 0.51
  # A disk of radius 1 is a cross of five pixels; sigma 0.2 hardly smooths it.
  actual = apply('defocus_blur', 4, point)[0, 3:6, 3:6, 0]
  np.testing.assert_array_equal(actual, [[0, 51, 0], [51, 51, 51], [0, 51, 0]])
  # Of radius 0.3 it is one pixel, smoothed by three taps of sigma 0.4.
  taps = np.exp(-np.array([1, 0, 1]) / (2 * 0.4**2))
  taps /= taps.sum()
  actual = apply('defocus_blur', 1, point)[0, 3:6, 3:6, 0]
  assert np.abs(actual - 255 * np.outer(taps, taps)).max() <= 0.51


def test_noises_have_their_moments():
  flat = np.full((200, 16, 16, 3), 0.5, np.float32)

  def of(name, strength):
    return corrupted(flat, name, strength, 1.0, np.random.default_rng(3)) - 0.5

  assert of('gaussian_noise', 3).std() == pytest.approx(0.08, rel=0.02)
  assert of('speckle_noise', 5).std() == pytest.approx(0.1, rel=0.02)
  assert of('shot_noise', 2).std() == pytest.approx(np.sqrt(0.5 / 250), rel=0.02)
  salt = of('impulse_noise', 5)
  assert (salt == 0.5).mean() == pytest.approx(0.035, rel=0.05)
  assert (salt == -0.5).mean() == pytest.approx(0.035, rel=0.05)
  assert (salt == 0).mean() == pytest.approx(0.93, rel=0.01)


def test_pixels_outside_of_0_to_1_are_refused():
  with pytest.raises(UserError, match='corrupted'):
    apply('contrast', 1, np.full((1, 5, 5), 300.0))
