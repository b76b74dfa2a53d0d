"""Layers of images against NumPy."""

import jax
import numpy as np

from fesem_jax.models import layers
from tests.models.resnet_test import normalize


def test_a_group_norm_of_pale_images_adds_its_epsilon_to_the_variance():
  rng = np.random.default_rng(0)
  x = 0.003 * rng.normal(size=(2, 3, 4, 6))  # Of a variance of 9e-6.
  layer = {'scale': rng.normal(size=6), 'bias': rng.normal(size=6)}
  params = jax.tree.map(np.float32, layer)
  got = layers.GroupNorm(2).apply({'params': params}, x.astype(np.float32))
  np.testing.assert_allclose(got, normalize(layer, x), rtol=1e-4, atol=1e-5)
