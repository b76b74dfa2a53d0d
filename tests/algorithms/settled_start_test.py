"""Training before the first clustering: how long, and who counts after it."""

import jax
import jax.numpy as jnp
import pytest

from fesem_jax.algorithms.common import first_clusters
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.batching import Schedule
from tests.support import helpers

DATA, LOCAL = helpers.federation([4, 4, 4]), helpers.local(hidden=())


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
  found = first_clusters._until_settled(
    LOCAL, trained(0), start, DATA, helpers.everyone(DATA), jax.random.key(0), tolerance
  )
  return int(found.params['number'][0, 0]) + 1, found


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


def test_a_fall_of_just_the_tolerance_is_none(monkeypatch):
  assert settled(monkeypatch, [3.0, 2.0, 0.0, 0.0], tolerance=1.0)[0] == 2


def test_training_is_repeated_ten_times_at_most(monkeypatch):
  losses = [20.0 - n for n in range(16)] + [5.0] * 4
  assert settled(monkeypatch, losses)[0] == first_clusters.MAX_REPETITIONS == 10


def test_a_client_that_fails_once_does_not_count(monkeypatch):
  # Client 1 in the first training alone, client 2 in the last one.
  _, found = settled(monkeypatch, [3.0, 2.0, 1.0, 1.0], [(), (0,), (3,)])
  assert found.finite.tolist() == [True, False, False]


def test_before_rounds_clients_train_for_epochs_and_none_drops_out():
  local = LOCAL._replace(schedule=Schedule(7, epochs=2, steps=9), dropout_rate=0.5)
  found = first_clusters.before_rounds(local, 5)
  assert found.schedule == Schedule(7, epochs=5, steps=0)
  assert found.dropout_rate == 0
  assert found.model is local.model


def test_a_sample_of_clients_stands_for_all_in_the_first_k_means(monkeypatch):
  seen, real = [], first_clusters.kmeans

  def watched(*args, **options):
    seen.append((args[2].shape[0], options['restarts']))
    return real(*args, **options)

  monkeypatch.setattr(first_clusters, 'kmeans', watched)
  starts = first_clusters.random_start(LOCAL, DATA, jax.random.key(0), 'common')
  for limit, most in ((0, 3), (2, 2), (1, 2)):
    how = first_clusters.Clustering(4, max_clients=limit)
    jax.eval_shape(
      lambda key, how=how: (
        first_clusters.train_and_cluster(
          LOCAL, starts, DATA, helpers.everyone(DATA), key, 2, how
        ).assignment
      ),
      jax.random.key(0),
    )
    assert seen.pop() == (most, 4)  # At least one client for each cluster.
