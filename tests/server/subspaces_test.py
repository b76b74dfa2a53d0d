"""Subspaces of clients and angles between them, against float64 and by hand."""

import re
from typing import get_args

import jax
import numpy as np
import pytest
from scipy.linalg import subspace_angles

from fesem_jax.server import subspaces

of_labels = jax.jit(subspaces.label_vectors, static_argnums=(3, 4))
proximities = jax.jit(subspaces.proximities, static_argnums=2)


def lines_of(x, count):
  """[count, F] first left singular vectors of examples [n, F], up to their signs."""
  left, values, _ = np.linalg.svd(np.asarray(x, np.float64).T)
  result = np.zeros((count, x.shape[1]))
  kept = min(count, (values > 3e-3 * values.max(initial=0)).sum())
  result[:kept] = left.T[:kept]
  return result


def assert_same_lines(got, want):
  got = np.asarray(got, np.float64)
  np.testing.assert_array_equal(got.any(axis=-1), want.any(axis=-1))
  outer = 'lpf,lpg->lpfg'
  np.testing.assert_allclose(
    np.einsum(outer, got, got), np.einsum(outer, want, want), atol=1e-4
  )


def test_vectors_of_labels_with_many_few_and_no_examples():
  rng = np.random.default_rng(0)
  x = (rng.normal(size=(9, 5)) * [3, 2, 1, 0.5, 0.2]).astype(np.float32)
  y = np.array([1, 0, 1, 0, 3, 0, 0, 1, 0])
  x[7] = x[0] + x[2]  # Label 1 has three examples of two dimensions.
  exists = np.arange(9) != 8
  x[8] = np.nan
  result = of_labels(x, y, exists, 4, 3)
  want = np.stack([lines_of(x[(y == label) & exists], 3) for label in range(4)])
  assert want.any(axis=2).sum(axis=1).tolist() == [3, 2, 0, 1]
  assert_same_lines(result, want)
  # Of some labels more are asked for than there are examples of all.
  more = of_labels(x[:2], y[:2], exists[:2], 2, 4)
  assert more.shape == (2, 4, 5)
  assert_same_lines(more[:, :1], np.stack([lines_of(x[i : i + 1], 1) for i in (1, 0)]))
  assert not more[:, 1:].any()
  # One number that is not finite, and nothing is known.
  x[3, 1] = np.inf
  assert not of_labels(x, y, exists, 4, 3).any()


def test_labels_of_equal_examples_stay_apart():
  one = np.diag([3, 2, 1]).astype(np.float32)
  x, y = np.concatenate([one, one, one]), np.repeat([2, 0, 1], 3)
  result = of_labels(x, y, np.ones(9, bool), 3, 2)
  assert_same_lines(result, np.stack([np.eye(3)[:2]] * 3))


def test_directions_far_below_the_largest_are_of_rounding():
  x = np.diag([1, 0.004, 0.002]).astype(np.float32)
  result = of_labels(x, np.zeros(3, int), np.ones(3, bool), 1, 3)
  assert result[0].any(axis=1).tolist() == [True, True, False]
  # Two vectors with that small an angle span a plane, or a line only.
  for angle, expected in ((0.01, 0.0), (0.004, 90.0)):
    near = np.array([[1, 0, 0], [np.cos(angle), np.sin(angle), 0]], np.float32)
    other = np.array([[0, 1, 0], [0, 0, 0]], np.float32)
    got = proximities(near[None, None], other[None, None], 'smallest_angle')
    np.testing.assert_allclose(got, [[expected]], atol=0.5)


def wanted_angle(u, v, rule):
  """Degrees between vectors [L, p, F] of two clients."""
  u, v = (w.reshape(-1, w.shape[-1]).astype(np.float64) for w in (u, v))
  if rule == 'smallest_angle':
    return np.degrees(subspace_angles(u[u.any(axis=1)].T, v[v.any(axis=1)].T).min())
  cosines = np.minimum(np.abs(u @ v.T), 1)
  if rule == 'entries':
    return np.degrees(np.arccos(cosines.max()))
  either = u.any(axis=1) | v.any(axis=1)
  return np.degrees(np.arccos(np.diag(cosines)))[either].sum()


@pytest.mark.parametrize('rule', get_args(subspaces.Proximity))
def test_angles_of_two_clients_to_three_others(rule):
  rng = np.random.default_rng(1)
  u, v = (rng.normal(size=(n, 2, 2, 9)).astype(np.float32) for n in (2, 3))
  u[0, 1, 1] = v[2, 1, 1] = v[1, 0] = 0  # Vectors that lack, for one and for both.
  u[1, 1, 1, 2:] = v[0, 1, 1, :3] = 0
  u, v = (
    w / np.maximum(np.linalg.norm(w, axis=-1, keepdims=True), 1e-9) for w in (u, v)
  )
  result = proximities(u, v, rule)
  want = [[wanted_angle(a, b, rule) for b in v] for a in u]
  np.testing.assert_allclose(result, want, rtol=1e-3)
  # Neither signs nor the own side matter.
  np.testing.assert_allclose(proximities(-v, u, rule), np.transpose(want), rtol=1e-3)
  # To oneself there is no angle, nor where neither has a vector.
  angles = proximities(u, u, rule)
  np.testing.assert_allclose(np.diag(angles), 0, atol=0.15)


def test_the_rank_does_not_depend_on_the_unit_of_examples():
  x = 128 * np.diag([1, 0.004, 0.002]).astype(np.float32)
  result = of_labels(x, np.zeros(3, int), np.ones(3, bool), 1, 3)
  assert result[0].any(axis=1).tolist() == [True, True, False]


@pytest.mark.parametrize(
  ('rule', 'degrees'), [('smallest_angle', 90), ('entries', 90), ('sum_of_angles', 180)]
)
def test_a_client_without_vectors_is_at_right_angles_to_others(rule, degrees):
  one = np.eye(3, dtype=np.float32)[None, None, :2]
  none = np.zeros_like(one)
  for u, v in ((one, none), (none, one)):
    np.testing.assert_allclose(proximities(u, v, rule), [[degrees]], rtol=1e-5)


def test_small_principal_angles_keep_their_digits():
  turned = np.array([[np.cos(1e-4), np.sin(1e-4), 0.0]], np.float32)
  ours = np.eye(3, dtype=np.float32)[None, None, :1]
  angles = proximities(ours, turned[None, None], 'smallest_angle')
  np.testing.assert_allclose(angles, np.degrees([[1e-4]]), rtol=1e-3)


def test_matrices_of_several_runs_are_decomposed_one_by_one():
  matrices = np.zeros((2, 3, 3), np.float32)
  text = jax.jit(jax.vmap(subspaces.eigh)).lower(matrices).as_text()
  assert re.findall('num_batch_dims = "(.)"', text) == ['0']
