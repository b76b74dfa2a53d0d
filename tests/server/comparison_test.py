"""What is compared and averaged: all layers, one layer, or matched units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.core import sharding, tree
from fesem_jax.server import comparison
from tests.support import helpers
from tests.support.methods import matrix

MODEL = helpers.local().model
STACK = jax.vmap(MODEL.init)(jax.random.split(jax.random.key(0), 4))
CENTERS = jax.vmap(MODEL.init)(jax.random.split(jax.random.key(1), 3))
SHARES = np.array([[0.2, 0.3, 0.5], [0, 1, 0]], np.float32)


@pytest.mark.parametrize('layer', ['all', 'logits', '**/bias', 'dense0,log*'])
def test_weights_are_compared_in_all_layers_or_in_one(layer):
  by = comparison.build(layer, MODEL)
  assert by.partial == (layer != 'all')
  assert by.align is None
  part = {
    'logits': lambda x: x['logits'],
    '**/bias': lambda x: (x['dense0']['bias'], x['logits']['bias']),
  }.get(layer, lambda x: x)
  cluster, distance, stack = by.nearest(STACK, by.prepare(by.part(CENTERS)))
  apart = matrix(part(STACK))[:, None] - matrix(part(CENTERS))[None]
  want = np.square(apart.astype(np.float64)).sum(axis=2)
  np.testing.assert_array_equal(cluster, want.argmin(axis=1))
  np.testing.assert_allclose(distance, want.min(axis=1), rtol=1e-5)
  assert stack is STACK
  assert by.alike(STACK, jnp.ones(4, bool), None) is STACK
  mixed = matrix(by.mixed(SHARES, CENTERS, None))
  np.testing.assert_allclose(mixed, SHARES @ matrix(CENTERS), rtol=1e-5, atol=1e-6)
  assert not comparison.by_weights().partial  # All layers, by default.


def turned(stack):
  """The same functions, whose hidden units stand in the reverse order."""
  hidden = {n: x[..., ::-1] for n, x in stack['dense0'].items()}
  last = {**stack['logits'], 'kernel': stack['logits']['kernel'][:, ::-1]}
  return {'dense0': hidden, 'logits': last}


def test_units_are_matched_before_models_are_mixed():
  by = comparison.build('matched', MODEL)
  assert not by.partial
  # Each center is the first one, changed a little and with its units turned.
  first = tree.take(CENTERS, jnp.zeros(3, int))
  noise = jax.tree.map(lambda x: 0.01 * x, CENTERS)
  near = jax.tree.map(jnp.add, first, noise)
  references = turned(jax.tree.map(lambda x: x[:2], near))
  result = matrix(jax.jit(by.mixed)(SHARES, near, references))
  want = SHARES @ matrix(turned(near))
  np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)
  # All get the order of the first one that exists.
  mixed_up = jax.tree.map(
    lambda a, b: jnp.stack([a[0], b[1], a[2]]), near, turned(near)
  )
  alike = by.alike(mixed_up, jnp.array([False, True, True]), None)
  np.testing.assert_allclose(matrix(alike), matrix(turned(near)), rtol=1e-6)
  alike = by.alike(mixed_up, jnp.array([True, True, True]), None)
  np.testing.assert_allclose(matrix(alike), matrix(near), rtol=1e-6)


def test_matching_is_traced_for_two_devices():
  by, mesh = comparison.build('matched', MODEL), sharding.client_mesh(2)

  def result(stack, centers):
    exists = jnp.ones(4, bool)
    return *by.nearest(stack, by.prepare(centers), mesh), by.alike(stack, exists, mesh)

  cluster, distance, *stacks = jax.eval_shape(result, STACK, CENTERS)
  assert cluster.shape == distance.shape == (4,)
  for stack in stacks:
    assert jax.tree.map(jnp.shape, stack) == jax.tree.map(jnp.shape, STACK)
