"""Subspaces that clients' examples span, and the angles between them (PACFL)."""

from typing import Literal

import jax
import jax.numpy as jnp

from fesem_jax.core import batching, client_map, platforms
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort

Proximity = Literal['smallest_angle', 'sum_of_angles', 'entries']

_HIGHEST = jax.lax.Precision.HIGHEST

# Of the largest singular value; below, a direction is one of rounding.
_RANK = 3e-3


def principal_vectors(
  local: LocalTraining, data: FederatedData, cohort: Cohort, count: int
) -> jax.Array:
  """[S, L, p, F] float32: first p = `count` left singular vectors of each label.

  The columns of its matrix are examples. Vectors are 0 where there are fewer.
  """

  def body(data, ids, rows, _, sums):
    sizes = data.sizes(ids)

    def client_vectors(client_and_size):
      client, size = client_and_size
      first = jnp.int32(0)
      rows, weights = batching.batch_places(first, size, data.max_examples)
      x, y = batching.gather(data, client, rows)
      flat, exists = x.reshape(len(x), -1), weights > 0
      return label_vectors(flat, y, exists, data.num_classes, count)

    # Not side by side: see `eigh`.
    return jax.lax.map(client_vectors, (ids, sizes)), sums

  return client_map.map_clients(
    body,
    cohort.ids,
    data.sizes(cohort.ids),
    None,
    data,
    per_chunk=local.clients_per_chunk,
    empty=data.num_clients,
    mesh=local.mesh,
  )[0]


def label_vectors(
  x: jax.Array, y: jax.Array, exists: jax.Array, num_labels: int, count: int
) -> jax.Array:
  """`principal_vectors` of one client, [L, p, F]."""
  # One decomposition for all labels: products across labels are 0, and a factor keeps
  # equal values of two labels apart.
  x = jnp.where(exists[:, None], x, 0.0)
  labels = jax.nn.one_hot(y, num_labels).T * exists[None]  # [L, N]
  gram = jnp.matmul(x, x.T, precision=_HIGHEST) * (1 + y / num_labels)[None]
  values, vectors = eigh(jnp.where(y[:, None] == y[None], gram, 0.0))
  shares = jnp.matmul(labels, jnp.square(vectors), precision=_HIGHEST)
  label_values = jnp.where(shares > 0.5, values, 0.0)
  largest = label_values.max(axis=1, keepdims=True)
  label_values = jnp.where(label_values > _RANK**2 * largest, label_values, 0.0)
  label_values, index = jax.lax.top_k(label_values, min(count, len(x)))
  right = (
    jnp.where((label_values > 0)[..., None], vectors.T[index], 0.0) * labels[:, None]
  )
  directions = jnp.einsum('lpn,nf->lpf', right, x, precision=_HIGHEST)
  lengths = jnp.linalg.norm(directions, axis=-1, keepdims=True)
  directions = jnp.where(lengths > 0, directions / lengths, 0.0)
  directions = jnp.where(jnp.isfinite(directions).all(), directions, 0.0)
  return jnp.pad(directions, ((0, 0), (0, count - directions.shape[1]), (0, 0)))


def proximities(
  subspaces: jax.Array, reference_subspaces: jax.Array, rule: str
) -> jax.Array:
  """[a, b] float32 degrees between subspaces [a, L, p, F] and [b, L, p, F] of clients.

  `rule` is 'smallest_angle', the smallest principal angle of what all vectors span;
  'sum_of_angles' of vectors of one label and place; or 'entries', the smallest angle of
  two vectors. Angles are between lines; a vector that lacks is at 90 degrees.
  """
  flat = [u.reshape(len(u), -1, u.shape[-1]) for u in (subspaces, reference_subspaces)]
  if rule == 'smallest_angle':
    flat = [_orthonormal(u) for u in flat]
  measure = {
    'smallest_angle': _smallest_principal_angles,
    'sum_of_angles': _sums_of_angles,
    'entries': _smallest_angles,
  }[rule]
  return jnp.degrees(jax.lax.map(lambda u: measure(u, flat[1]), flat[0]))


@jax.custom_batching.sequential_vmap
def _eigh_alone(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
  values, vectors = jnp.linalg.eigh(matrix)
  return values, vectors


def eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Eigenvalues and vectors; under `vmap` on a CPU one by one, or devices deadlock."""
  return platforms.choose(_eigh_alone, lambda m: tuple(jnp.linalg.eigh(m)), matrix)


def _orthonormal(u: jax.Array) -> jax.Array:
  """[n, D, F] an orthonormal basis of what the vectors [n, D, F] span; else 0."""
  for smallest in (_RANK**2, 0.5):
    gram = jnp.einsum('ndf,nef->nde', u, u, precision=_HIGHEST)
    values, vectors = jax.vmap(eigh)(gram)
    spans = values > smallest * values[:, -1:]
    scale = jnp.where(spans, 1 / jnp.sqrt(jnp.where(spans, values, 1.0)), 0.0)
    u = jnp.einsum('nde,ne,ndf->nef', vectors, scale, u, precision=_HIGHEST)
  return u


def _smallest_principal_angles(u: jax.Array, bases: jax.Array) -> jax.Array:
  """[b] radians between the spans of u [D, F] and [b, D, F], precise near 0."""
  cosines = jnp.einsum('df,bef->bde', u, bases, precision=_HIGHEST)
  squares = jnp.einsum('bde,bce->bdc', cosines, cosines, precision=_HIGHEST)
  first = jax.vmap(eigh)(squares)[1][:, :, -1]  # The left singular vector.
  second = jnp.einsum('bd,bde->be', first, cosines, precision=_HIGHEST)
  cosine = jnp.linalg.norm(second, axis=1, keepdims=True)
  second = jnp.where(cosine > 0, second / cosine, 0.0)
  first_direction = jnp.matmul(first, u, precision=_HIGHEST)
  second_direction = jnp.einsum('be,bef->bf', second, bases, precision=_HIGHEST)
  chord = jnp.linalg.norm(first_direction - second_direction, axis=1)
  angle = 2 * jnp.arcsin(jnp.minimum(chord / 2, jnp.sqrt(0.5)))
  return jnp.where(cosine[:, 0] > 0, angle, jnp.pi / 2)


def _sums_of_angles(u: jax.Array, other_vectors: jax.Array) -> jax.Array:
  """[b] radians, summed over the pairs of vectors of u [D, F] and [b, D, F]."""
  cosines = jnp.einsum('df,bdf->bd', u, other_vectors, precision=_HIGHEST)
  exist = (u != 0).any(axis=1)[None] | (other_vectors != 0).any(axis=2)
  return jnp.where(exist, _arccos(cosines), 0.0).sum(axis=1)


def _smallest_angles(u: jax.Array, other_vectors: jax.Array) -> jax.Array:
  """[b] radians, the least between a vector of u [D, F] and one of [b, D, F]."""
  cosines = jnp.einsum('df,bef->bde', u, other_vectors, precision=_HIGHEST)
  return _arccos(cosines).min(axis=(1, 2))


def _arccos(cosines: jax.Array) -> jax.Array:
  """Radians between the lines along vectors of these cosines."""
  return jnp.arccos(jnp.minimum(jnp.abs(cosines), 1.0))
