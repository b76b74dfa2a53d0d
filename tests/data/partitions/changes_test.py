"""What partitions make of images and labels, beside references of their own."""

import colorsys
import itertools

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from fesem_jax import data
from fesem_jax.data.partitions import image_corruptions, rotation
from fesem_jax.data.partitions.image_corruptions import corrupted
from fesem_jax.utils.errors import UserError

_RNG = np.random.default_rng(0)
_SMOOTH = ndimage.gaussian_filter(_RNG.uniform(0, 255, (6, 32, 32, 3)), (0, 2, 2, 0))
IMAGES = (128 + 4 * (_SMOOTH - _SMOOTH.mean())).clip(0, 255).astype(np.uint8)


def images(**changes):
  """Color images of one client, of ten classes."""
  rng = np.random.default_rng(1)
  arrays = {
    'x': rng.integers(0, 256, (120, 8, 8, 3)).astype(np.uint8),
    'y': np.arange(120) % 10,
    'client': np.zeros(120, int),
    'split': np.arange(120) % 6 == 0,
  }
  return arrays | changes


def apply(name, strength, x=IMAGES):
  return corrupted(x, name, strength, 1 / 255, np.random.default_rng(7))


@pytest.mark.parametrize('name', image_corruptions.NAMES[1:])
def test_corruptions_keep_the_shape_and_are_repeatable(name):
  for x in (IMAGES, IMAGES[..., 0], IMAGES[:, :20]):
    got = apply(name, 3, x)
    assert (got.shape, got.dtype) == (x.shape, np.uint8)
    np.testing.assert_array_equal(got, apply(name, 3, x))
    if name != 'saturate' or x.ndim == 4:
      assert (got != x).any()
  floats = corrupted(
    IMAGES.astype(np.float32) / 255, name, 3, 1.0, np.random.default_rng(7)
  )
  assert np.abs(floats * 255 - apply(name, 3)).max() <= 0.51


@pytest.mark.parametrize(
  'name', [n for n in image_corruptions.NAMES[1:] if n != 'saturate']
)
def test_stronger_corruptions_are_farther_away(name):
  far = [np.abs(apply(name, s) - IMAGES.astype(float)).mean() for s in range(1, 6)]
  assert (np.diff(far) > 0).all()


@pytest.mark.parametrize('strength', [1, 2, 3, 4, 5])
def test_pixelate_is_pillows_box(strength):
  few = int(32 * (0.95, 0.9, 0.85, 0.75, 0.65)[strength - 1])
  for got, image in zip(apply('pixelate', strength), IMAGES, strict=True):
    small = Image.fromarray(image).resize((few, few), Image.Resampling.BOX)
    want = np.asarray(small.resize((32, 32), Image.Resampling.BOX))
    assert np.abs(got.astype(int) - want).max() <= 2  # Pillow rounds in between.


def of_pixels(change):
  """An image whose HSV pixels are changed one by one."""

  def changed(pixel):
    return colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*(pixel / 255.0))))

  return np.apply_along_axis(changed, -1, IMAGES[:2]) * 255


def test_brightness_and_saturation_are_of_hsv():
  gray = np.full((1, 4, 4, 3), 100, np.uint8)
  for strength, c in enumerate((0.05, 0.1, 0.15, 0.2, 0.3), 1):
    want = of_pixels(lambda h, s, v, c=c: (h, s, min(v + c, 1)))
    assert np.abs(apply('brightness', strength)[:2] - want).max() <= 0.51
  factors = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))
  for strength, (factor, added) in enumerate(factors, 1):
    want = of_pixels(lambda h, s, v, f=factor, a=added: (h, min(s * f + a, 1), v))
    assert np.abs(apply('saturate', strength)[:2] - want).max() <= 0.51
  np.testing.assert_array_equal(apply('saturate', 5, gray)[0, 0, 0], [100, 80, 80])


def test_zoom_blur_is_the_mean_of_zoomed_images():
  image = IMAGES[0] / 255
  total, factors = image.copy(), np.arange(1, 1.16, 0.01)
  for factor in factors:
    kept = int(np.ceil(32 / factor))
    first = (32 - kept) // 2
    middle = image[first : first + kept, first : first + kept]
    large = ndimage.zoom(middle, (factor, factor, 1), order=1)
    trim = (len(large) - 32) // 2
    total += large[trim : trim + 32, trim : trim + 32]
  want = 255 * total / (len(factors) + 1)
  assert np.abs(apply('zoom_blur', 3)[0] - want).max() <= 0.51


def test_blurs_and_contrast_by_their_equations():
  x = IMAGES.astype(float)
  mean = x.mean(axis=(1, 2), keepdims=True)
  assert np.abs(apply('contrast', 2) - (0.5 * x + 0.5 * mean)).max() <= 0.51
  point = np.zeros((1, 9, 9, 1), np.uint8)
  point[0, 4, 4] = 255
  at = np.arange(-4, 5)
  taps = np.exp(-(at**2) / (2 * 1.0**2))
  want = 255 * np.outer(taps, taps) / taps.sum() ** 2
  assert np.abs(apply('gaussian_blur', 5, point)[0, :, :, 0] - want).max() <= 0.51
  # A disk of radius 1 is a cross of five pixels; sigma 0.2 hardly smooths it.
  got = apply('defocus_blur', 4, point)[0, 3:6, 3:6, 0]
  np.testing.assert_array_equal(got, [[0, 51, 0], [51, 51, 51], [0, 51, 0]])
  # Of radius 0.3 it is one pixel, smoothed by three taps of sigma 0.4.
  taps = np.exp(-np.array([1, 0, 1]) / (2 * 0.4**2))
  taps /= taps.sum()
  got = apply('defocus_blur', 1, point)[0, 3:6, 3:6, 0]
  assert np.abs(got - 255 * np.outer(taps, taps)).max() <= 0.51


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


def test_corrupted_groups_are_of_one_kind_each():
  arrays = images()
  train, test = data.load(
    'mine', arrays=arrays, partition='corrupted', num_clients=6,
    image_corruptions=['none', 'contrast', 'gaussian_noise'], corruption_strength=5,
  )  # fmt: skip
  assert train.info.clusters.tolist() == [0, 1, 2] * 2
  assert train.info.cluster_names == ('none', 'contrast', 'gaussian noise')
  originals = {x.tobytes() for x in arrays['x']}
  spread = arrays['x'].std(axis=(1, 2)).mean()
  for split in (train, test):
    for i in range(6):
      x, _ = split.client(i)
      assert all((x.tobytes() in originals) == (i % 3 == 0) for x in x)
      if i % 3 == 1:
        assert x.std(axis=(1, 2)).mean() == pytest.approx(0.15 * spread, rel=0.05)
  by_number, _ = data.load(
    'mine', arrays=arrays, partition='corrupted', num_clients=6, partition_groups=2
  )
  assert by_number.info.cluster_names == ('none', 'gaussian noise')


def test_groups_may_be_turned_by_any_angles():
  train, _ = data.load(
    'digits', partition='rotated', num_clients=6, rotations=['0', '-90', '30'],
    rotation_sampling='nearest',
  )  # fmt: skip
  assert train.info.cluster_names == ('0 degrees', '-90 degrees', '30 degrees')
  originals = {x.tobytes() for x in data.digits.load().x}
  for i, back in ((0, 0), (1, 1), (3, 0), (4, 1)):
    x, _ = train.client(i)
    assert all(np.rot90(image, back).tobytes() in originals for image in x)
  values = set(np.unique(data.digits.load().x).tolist())
  assert set(np.unique(train.client(2)[0]).tolist()) <= values  # Not interpolated.


@pytest.mark.parametrize('degrees', [15, 105, -40.5])
def test_nearest_sampling_takes_the_nearest_pixel(degrees):
  x = np.random.default_rng(0).integers(1, 256, (2, 28, 28)).astype(np.uint8)
  got = rotation.rotate(x, degrees, 'nearest')
  angle, middle = np.deg2rad(degrees), 13.5
  row, column = np.mgrid[:28, :28] - middle
  # Where the pixel was, before the image was turned counterclockwise.
  old_row = np.cos(angle) * row + np.sin(angle) * column + middle
  old_column = -np.sin(angle) * row + np.cos(angle) * column + middle
  nearest = [np.rint(old).astype(int) for old in (old_row, old_column)]
  inside = np.all([(n >= 0) & (n < 28) for n in nearest], axis=0)
  want = np.where(inside, x[:, nearest[0].clip(0, 27), nearest[1].clip(0, 27)], 0)
  assert (got == want).mean() > 0.998  # But for ties.


def test_swapped_labels_are_swapped_back():
  arrays = images()
  swapped, _ = data.load(
    'mine', arrays=arrays, partition='label_swapped', num_clients=8
  )
  truth = {x.tobytes(): y for x, y in zip(arrays['x'], arrays['y'], strict=True)}
  chosen, _ = data.load(
    'mine', arrays=arrays, partition='label_swapped', num_clients=8, label_swaps=['7-1']
  )
  assert chosen.info.cluster_names == ('original labels', 'labels 1 and 7 swapped')
  back = [{}, {1: 2, 2: 1}, {3: 4, 4: 3}, {5: 6, 6: 5}]
  for split, of_group in ((swapped, back), (chosen, [{}, {1: 7, 7: 1}])):
    for i in range(8):
      for x, y in zip(*split.client(i), strict=True):
        original = of_group[i % len(of_group)].get(int(y), int(y))
        assert original == truth[x.tobytes()]


def test_labels_change_among_those_that_occur():
  y = np.repeat([1, 2, 5], 40)  # From 1, and with a gap.
  mine = {'x': np.arange(120.0)[:, None] + np.zeros(3), 'y': y}
  train, _ = data.load(
    'mine', arrays=mine, partition='label_permuted', num_clients=6, partition_groups=6
  )
  tables = set()
  for i in range(6):
    x, labels = train.client(i)
    pairs = {(y[int(row[0])], label) for row, label in zip(x, labels, strict=True)}
    assert len(pairs) == 3
    tables.add(tuple(label for _, label in sorted(pairs)))
  assert tables == set(itertools.permutations([1, 2, 5]))


def test_noise_grows_from_client_to_client():
  arrays = images(x=np.random.default_rng(2).random((120, 30, 30)).astype(np.float32))
  arrays['scale'] = 2.0
  options = {'num_clients': 5, 'seed': 4}
  plain, plain_test = data.load('mine', arrays=arrays, partition='iid', **options)
  noisy, noisy_test = data.load(
    'mine', arrays=arrays, partition='noisy', noise_variance=0.5, **options
  )
  for before, after in ((plain, noisy), (plain_test, noisy_test)):
    for i in range(5):
      added = 2.0 * (after.client(i)[0] - before.client(i)[0])
      assert added.var() == pytest.approx(0.5 * (i + 1) / 5, rel=0.06)
      assert abs(added.mean()) < 0.05
  first = [s.client(0)[0][0] for s in (plain, noisy, plain_test, noisy_test)]
  assert not np.allclose(first[1] - first[0], first[3] - first[2])
  both, _ = data.load(
    'mine', arrays=images(), partition='rotated+noisy', num_clients=8, seed=4
  )
  assert (both.x.dtype, both.info.clusters[1]) == (np.float32, 1)


def test_noise_is_added_to_standardized_columns():
  rng = np.random.default_rng(3)
  x = rng.normal([50, 1], [30, 0.01], (4000, 2))
  mine = {'x': np.hstack([x, rng.integers(0, 2, (4000, 1))]), 'y': np.arange(4000) % 3}
  options = {'num_clients': 4, 'standardize': True}
  plain = data.load('mine', arrays=mine, partition='iid', **options)
  noisy = data.load(
    'mine', arrays=mine, partition='noisy', noise_variance=0.5, **options
  )
  for before, after in zip(plain, noisy, strict=True):
    for i in range(4):
      added = after.client(i)[0] - before.client(i)[0]
      np.testing.assert_allclose(added.var(axis=0), 0.5 * (i + 1) / 4, rtol=0.25)


@pytest.mark.parametrize(
  ('partition', 'options', 'message'),
  [
    ('rotated', {'rotations': [0, np.inf]}, '`rotations=inf`'),
    ('rotated', {'rotation_sampling': 'cubic'}, '^rotation_sampling: '),
    ('corrupted', {'image_corruptions': ['fog']}, '^image_corruptions: '),
    ('corrupted', {'corruption_strength': 6}, 'corruption_strength=6'),
    ('corrupted', {'partition_groups': 13}, '`partition_groups=13`'),
    ('label_swapped', {'partition_groups': 6}, 'no label 10'),
    ('label_swapped', {'label_swaps': ['1-x']}, '`label_swaps=1-x`'),
    ('noisy', {'noise_variance': -1.0}, '`noise_variance=-1.0`'),
    ('rotated+spiral', {}, '`partition=spiral`'),
    ('rotated+label_permuted', {}, 'product'),
    ('natural+rotated', {}, 'product'),
    ('rotated+iid+noisy', {}, 'product'),
    ('rotated+dirichlet', {'num_clients': 3}, '3 clients'),
  ],
)
def test_impossible_changes_are_named(partition, options, message):
  with pytest.raises(UserError, match=message):
    data.load('digits', **{'partition': partition, 'num_clients': 20} | options)


def test_features_that_cannot_be_changed_are_named():
  rows = images(x=np.ones((120, 5), np.float32))
  for name in ('rotated', 'corrupted'):
    with pytest.raises(UserError, match=f'`partition={name}` needs images'):
      data.load('mine', arrays=rows, partition=name, num_clients=8)
  far = images(x=np.full((120, 5, 5), 2.0, np.float32))
  with pytest.raises(UserError, match='pixels between 0 and 1'):
    data.load('mine', arrays=far, partition='corrupted', num_clients=8)


@pytest.mark.parametrize('name', ['rotated', 'corrupted'])
def test_images_with_channels_first_change_as_others(name):
  x = np.random.default_rng(0).random((120, 16, 16, 3))
  splits = [
    data.load('mine', arrays=images(x=each), partition=name, num_clients=4)
    for each in (x, np.moveaxis(x, -1, 1))
  ]
  for last, first in zip(*splits, strict=True):
    np.testing.assert_array_equal(last.x, first.x)
