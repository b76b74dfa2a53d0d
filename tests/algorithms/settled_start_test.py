"""Training before the first clustering: how long, and who counts after it."""

import jax
import jax.numpy as jnp
import pytest

from fesem_jax.algorithms.common import first_clusters
from fesem_jax.core.algorithm import ClientModels
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


def test_training_is_repeated_ten_times_at_most(monkeypatch):
  losses = [20.0 - n for n in range(16)] + [5.0] * 4
  assert settled(monkeypatch, losses)[0] == first_clusters.MAX_REPETITIONS == 10


def test_a_client_that_fails_once_does_not_count(monkeypatch):
  # Client 1 in the first training alone, client 2 in the last one.
  _, found = settled(monkeypatch, [3.0, 2.0, 1.0, 1.0], [(), (0,), (3,)])
  assert found.finite.tolist() == [True, False, False]
