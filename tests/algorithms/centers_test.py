"""Methods with several centers, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax.algorithms.common import first_clusters
from fesem_jax.algorithms.common.centers import (
  reassigned,
  round_info,
)
from fesem_jax.algorithms.common.em_steps import assign
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels, Clusters
from fesem_jax.server import comparison, em
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.training.cohort import train_cohort
from tests.support import helpers


def test_a_round_counts_clients_and_not_padding():
  data = helpers.federation([1, 2, 3, 1]).reorder(np.arange(4), num_clients=6)
  local = helpers.local()
  trained = train_cohort(
    local,
    ClientModels(tree.expand(helpers.first_model(local))),
    data,
    helpers.everyone(data),
    jax.random.key(1),
  )
  before, after = jnp.array([0, 0, 1, 1, 0, 0]), jnp.array([1, 0, 0, 1, 0, 1])
  info = round_info(trained, 3, jnp.float32(2), before, after, data)
  np.testing.assert_array_equal(info.clusters.sizes, [2, 2, 0])
  assert info.clusters.sizes.dtype == jnp.int32
  assert int(info.clusters.moved) == 2
  assert (int(info.trained), int(info.failed)) == (4, 0)
  np.testing.assert_array_equal(info.clusters.assignment, after)


def test_a_report_is_corrected_where_the_host_moves_clients():
  before, after = np.array([0, 0, 1, 1, 0]), np.array([0, 1, 1, 2, 0])
  reported = Clusters(before, np.array([2, 2, 0, 0]), 0, 5.0)  # One is padding.
  result = reassigned(reported, before, after)
  assert result.assignment is after
  assert result.sizes.tolist() == [1, 2, 1, 0]
  assert result.moved == 2
  assert result.objective == 5.0


# FeSEM's E-step and M-step on a chunk of clients, by hand.


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
  inputs = compare.prepare(compare.part(CENTERS))
  result = assign(compare, CHUNK, STARTS, inputs, keep)
  assert result.cluster.tolist() == clusters
  np.testing.assert_allclose(result.distance[:2], distances)
  np.testing.assert_array_equal(result.models['first']['w'], CHUNK.params['first']['w'])


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
  result, after = server_optimizers.step(optimizer, server, centers, total.clients)
  # Delta is 6: 0 - 0.5 (0.5 * 8 - 6).
  np.testing.assert_allclose(result['w'], [1.0, 10.0])
  np.testing.assert_allclose(after[0].trace['w'], [-2.0, 8.0])


# Training before the first clustering: how long, and who counts after it.


DATA = helpers.federation([4, 4, 4])


def settled(monkeypatch, losses, fails=((), (), ()), tolerance=0.1):
  """Clients after training until the loss settles, each time with the next loss.

  Args:
    monkeypatch: puts that training in place of the real one.
    losses: of the first training, the second, and so on.
    fails: in which of them each client fails.
    tolerance: of the mean loss.
  """

  def trained(number):
    failed = jnp.array([[n in own for n in range(len(losses))] for own in fails])
    return helpers.trained(
      {'number': jnp.full((3, 1), number, jnp.float32)}, [4] * 3,
      loss=jnp.full(3, jnp.array(losses)[number]), finite=~failed[:, number],
    )  # fmt: skip

  def train_again(local, starts, data, cohort, key):
    return trained(starts.personal['number'][0, 0].astype(jnp.int32) + 1)

  monkeypatch.setattr(first_clusters, 'train_cohort', train_again)
  start = ClientModels({'number': jnp.zeros((1, 1))})
  result = first_clusters._until_settled(
    LOCAL, trained(0), start, DATA, helpers.everyone(DATA), jax.random.key(0), tolerance
  )
  return int(result.params['number'][0, 0]) + 1, result


@pytest.mark.parametrize(
  ('losses', 'times'),
  [
    # The third lowers the loss by less than 0.1.
    ([3.0, 2.0, 1.95, 1.0, 0.5, 0.1, 0.1], 3),
    ([3.0, 2.0, 1.0, 0.95, 0.0, 0.0, 0.0], 4),
    ([3.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2),
  ],
)
def test_training_is_repeated_while_the_loss_falls_by_the_tolerance(
  losses, times, monkeypatch
):
  assert settled(monkeypatch, losses)[0] == times


def test_training_is_repeated_ten_times_at_most(monkeypatch):
  losses = [20.0 - n for n in range(16)] + [5.0] * 4
  assert settled(monkeypatch, losses)[0] == first_clusters.MAX_REPETITIONS == 10


def test_a_client_that_fails_once_does_not_count(monkeypatch):
  # Client 1 in the first training alone, client 2 in the last one.
  _, result = settled(monkeypatch, [3.0, 2.0, 1.0, 1.0], [(), (0,), (3,)])
  assert result.finite.tolist() == [True, False, False]
