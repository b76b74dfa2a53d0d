"""Crops and flips of images in local steps, against NumPy for given draws."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.evaluation.evaluate import evaluate_clients
from fesem_jax.training.augmentation import Crop, Flip, augmentation
from fesem_jax.training.client_losses import cohort_losses
from fesem_jax.training.cohort import train_cohort
from tests.support import helpers, reference
from tests.support.methods import assert_close
from tests.support.nights import rest_by_night

GRAY, COLOR = (6, 5), (6, 5, 3)
SIZES = [6, 3, 9]
KEY = jax.random.key(3)


def by_numpy(change, image, drawn):
  """What a change makes of an image [H, W, ...], in NumPy."""
  height, width = image.shape[:2]
  if isinstance(change, Crop):
    beside = ((change.padding,) * 2,) * 2 + ((0, 0),) * (image.ndim - 2)
    row, column = drawn
    return np.pad(image, beside)[row : row + height, column : column + width]
  return np.fliplr(image) if drawn else image


def spelled_out(made, key, batch):
  """An augmented batch, image by image, of the draws that the keys specify."""
  out = []
  for slot, image in enumerate(batch):
    keys = jax.random.split(jax.random.fold_in(key, slot), len(made.changes))
    for change_key, change in zip(keys, made.changes, strict=True):
      image = by_numpy(change, image, np.asarray(change.draw(change_key, image.shape)))
    out.append(image)
  return np.stack(out)


@pytest.mark.parametrize('shape', rest_by_night([(GRAY,), (COLOR,)]))
@pytest.mark.parametrize('text', ['crop:2', 'flip', 'crop:5,flip'])
def test_images_are_changed_as_numpy_does(text, shape):
  made = augmentation(text, shape)
  batch = np.random.default_rng(0).normal(size=(20, *shape)).astype(np.float32)
  got = np.asarray(jax.jit(made)(KEY, batch))
  np.testing.assert_array_equal(got, spelled_out(made, KEY, batch))
  assert (got != batch).any()
  other = np.asarray(jax.jit(made)(jax.random.key(4), batch))
  assert (got != other).any()


@pytest.mark.parametrize('change', [Crop(2), Flip()])
def test_all_draws_occur_alike(change):
  keys = jax.random.split(KEY, 6000)
  drawn = np.asarray(jax.vmap(lambda k: change.draw(k, COLOR))(keys)).astype(int)
  values, counts = np.unique(drawn.reshape(len(keys), -1), axis=0, return_counts=True)
  num_values = {Crop: 25, Flip: 2}[type(change)]
  assert len(values) == num_values
  np.testing.assert_allclose(counts * num_values / len(keys), 1.0, atol=0.25)


def of_images(**options):
  local = helpers.local(shape=GRAY, **options)
  return local._replace(augmentation=augmentation('crop:1,flip', GRAY))


@pytest.mark.parametrize(
  ('chunk', 'devices', 'batch'), rest_by_night([(1, 1, 4), (2, 2, 4), (3, 1, 0)])
)
def test_local_steps_draw_anew_for_each_client_and_step(chunk, devices, batch):
  data = helpers.federation(SIZES, shape=GRAY)
  local = of_images(epochs=2, chunk=chunk, devices=devices, batch_size=batch)
  local = local._replace(shared_start='on')  # Exact with it too.
  start = tree.expand(helpers.first_model(local))
  data_here = data.reorder(np.arange(3), 4) if devices == 2 else data
  run = jax.jit(
    lambda p, d: train_cohort(local, ClientModels(p), d, helpers.everyone(d), KEY)
  )
  got = run(start, data_here).params
  for i in range(len(SIZES)):
    of_client = jax.random.fold_in(jax.random.fold_in(KEY, i), 2**31 - 16)
    seen = []
    for step, (x, y) in enumerate(helpers.batches(data, local.schedule, i, KEY)):
      key = jax.random.fold_in(of_client, step)
      seen.append((spelled_out(local.augmentation, key, x), y))
    want, _ = reference.local_sgd(reference.from_params(start, 0), seen, 0.1)
    assert_close(
      reference.flat(reference.from_params(got, i)), reference.flat(want), rtol=1e-3
    )


def test_measuring_and_choosing_see_the_images_as_they_are():
  data, local = helpers.federation(SIZES, shape=GRAY), of_images()
  plain = local._replace(augmentation=None)
  stack = helpers.first_models(local, 2)
  cohort = helpers.everyone(data)
  chex.assert_trees_all_equal(
    *(cohort_losses(each, stack, data, cohort) for each in (local, plain))
  )
  used = ClientModels(stack, jnp.array([0, 1, 1]))
  counts = [
    jax.jit(lambda d, of=each: evaluate_clients(used, of, d, d, KEY, 30)[:2])(data)
    for each in (local, plain)
  ]
  chex.assert_trees_all_equal(counts[0][0], counts[1][0])
  # Fine-tuning is local training.
  assert (counts[0][1].sums.correct != counts[1][1].sums.correct).any()


def test_no_text_is_no_augmentation():
  assert augmentation('', (6,)) is None
  made = augmentation('flip,crop:1', COLOR)
  assert made.changes == (Flip(), Crop(1))
