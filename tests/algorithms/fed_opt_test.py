"""FedOpt: the server's optimizers against Reddi et al.'s Algorithm 2."""

import jax.numpy as jnp
import optax

from fesem_jax.algorithms.common import global_model
from fesem_jax.core import sums
from fesem_jax.server import robust
from tests.support import helpers


def moved_by(averaging, weight=1.0, finite=(True, True, True)):
  """The model 1 after a round of momentum 8 whose clients have models 3, 5 and 9."""
  trained = helpers.trained(
    {'w': jnp.array([[3.0], [5.0], [9.0]])},
    finite=jnp.array(finite),
    sums=sums.ClusterSums({'w': jnp.array([[2.0 * weight]])}, jnp.array([weight])),
  )
  state = global_model.GlobalState(
    {'w': jnp.ones((1, 1))},
    (optax.TraceState({'w': jnp.full((1, 1), 8.0)}), optax.EmptyState()),
  )
  after, _ = global_model.train_and_average(
    helpers.local(), state, None, None, None, averaging, lambda *args: trained
  )
  return float(after.params['w'][0, 0])


def test_one_client_is_enough_for_a_step_of_the_server_and_none_is_not():
  averaging = global_model.Averaging('uniform', optax.sgd(1.0, momentum=0.5))
  # 1 - (0.5 * 8 - 2), where the mean is 3.
  assert moved_by(averaging) == -1
  assert moved_by(averaging, weight=0.0) == 1
  # By the median of two models where one client failed: 1 - (0.5 * 8 - 3).
  median = averaging._replace(aggregation=robust.aggregation('median'))
  assert moved_by(median, finite=(True, True, False)) == 0
  assert moved_by(median, finite=(False, False, False)) == 1
