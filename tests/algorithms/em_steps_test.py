"""FeSEM's E-step and M-step on a chunk of clients, by hand."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax.algorithms.common.em_steps import assign
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.server import comparison, em
from fesem_jax.server import optimizers as server_optimizers
from tests.support import helpers

LOCAL = helpers.local(hidden=())


def models(first, last):
  """A stack of models with two layers of one number each."""
  return {'first': {'w': jnp.array(first)}, 'logits': {'w': jnp.array(last)}}


# Client 0 is nearest to center 1 in its last layer, and to center 0 in both. Client 2
# dropped out.
CENTERS = models([0.0, 4.0], [0.0, 2.0])
CHUNK = helpers.trained(
  models([0.0, 3.0, 4.0], [1.5, 3.0, 2.0]), [1, 4, 4],
  arrived=jnp.array([True, True, False]),
)  # fmt: skip
STARTS = ClientModels(CENTERS, jnp.array([0, 0, 0]))


@pytest.mark.parametrize(
  ('cluster_on', 'hold', 'clusters', 'distances'),
  [
    ('all', None, [0, 1, 0], [2.25, 2.0]),
    ('all', False, [0, 1, 0], [2.25, 2.0]),
    ('all', True, [0, 0, 0], [2.25, 18.0]),
    # Distances are of all layers even where one is compared.
    ('logits', None, [1, 1, 0], [16.25, 2.0]),
    ('logits', False, [1, 1, 0], [16.25, 2.0]),
    ('logits', True, [0, 0, 0], [2.25, 18.0]),
  ],
)
def test_clients_that_count_go_to_the_nearest_center_unless_all_are_held(
  cluster_on, hold, clusters, distances
):
  compare = comparison.build(cluster_on, LOCAL.model)
  keep = None if hold is None else jnp.bool_(hold)
  known = compare.prepare(compare.part(CENTERS))
  found = assign(compare, CHUNK, STARTS, known, keep)
  assert found.cluster.tolist() == clusters
  np.testing.assert_allclose(found.distance[:2], distances)
  np.testing.assert_array_equal(found.models['first']['w'], CHUNK.params['first']['w'])


def test_a_server_optimizer_moves_centers_of_one_client_and_none_without():
  # Each would go by its last step once more.
  centers = {'w': jnp.array([0.0, 10.0])}
  server = optax.TraceState({'w': jnp.array([8.0, 8.0])}), optax.EmptyState()
  trained = CHUNK._replace(
    params={'w': jnp.array([6.0, 9.0, 9.0])}, folded=(None, None)
  )
  cluster = jnp.zeros(3, jnp.int32)
  counted = trained._replace(finite=jnp.array([True, False, False]))
  total = em.Sums.zeros(centers).add(counted, cluster, jnp.zeros(3), 'uniform', centers)
  optimizer = optax.sgd(0.5, momentum=0.5)
  found, after = server_optimizers.step(optimizer, server, centers, total.clients)
  # Delta is 6: 0 - 0.5 (0.5 * 8 - 6).
  np.testing.assert_allclose(found['w'], [1.0, 10.0])
  np.testing.assert_allclose(after[0].trace['w'], [-2.0, 8.0])
