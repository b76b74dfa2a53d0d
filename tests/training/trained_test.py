"""Who counts in a round and how much, worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax.training.trained import WEIGHTINGS, Trained
from fesem_jax.utils.errors import UserError

# One client that counts, one that failed, one that dropped out, an empty place, and
# another one that counts.
TRAINED = Trained(
  ids=jnp.array([4, 0, 2, 9, 1]),
  params=None,
  loss=jnp.array([0.5, jnp.nan, 7.0, 0.0, 2.0]),
  sizes=jnp.array([3, 5, 4, 0, 1]),
  finite=jnp.array([True, False, True, True, True]),
  arrived=jnp.array([True, True, False, True, True]),
  steps=jnp.array([6, 10, 0, 0, 2]),
)


def test_clients_count_by_their_examples_or_alike():
  assert TRAINED.took_part().tolist() == [True, False, False, False, True]
  assert TRAINED.weights('by_examples').tolist() == [3, 0, 0, 0, 1]
  assert TRAINED.weights('uniform').tolist() == [1, 0, 0, 0, 1]
  weighted = TRAINED._replace(data_weights=jnp.array([0.5, 1.0, 1.0, 0.0, 2.0]))
  assert weighted.weights('by_weight').tolist() == [0.5, 0, 0, 0, 2.0]
  assert {weighted.weights(w).dtype for w in WEIGHTINGS} == {np.dtype(np.float32)}
  with pytest.raises(UserError, match='weighting'):
    TRAINED.weights('by_weight')
  with pytest.raises(UserError, match='weighting'):
    TRAINED.weights('by_size')


def test_the_loss_of_a_round_is_that_of_the_examples_that_count():
  assert float(TRAINED.mean_loss()) == pytest.approx((3 * 0.5 + 1 * 2) / 4)
  of_one = TRAINED._replace(arrived=jnp.arange(5) == 4)  # A single example.
  assert float(of_one.mean_loss()) == 2
  none_arrived = TRAINED._replace(arrived=jnp.zeros(5, bool))
  assert float(none_arrived.mean_loss()) == 0


def test_a_round_reports_who_failed_and_who_trained():
  info = TRAINED.info()
  assert (int(info.failed), int(info.trained), int(info.steps)) == (1, 2, 18)
  assert info.clusters is None
  clusters = object()
  assert TRAINED.info(clusters).clusters is clusters
  assert float(info.train_loss) == pytest.approx(3.5 / 4)
  assert info.clients.ids is TRAINED.ids
  assert info.clients.loss is TRAINED.loss
  # A place without examples has nothing that could fail.
  empty = TRAINED._replace(finite=jnp.zeros(5, bool))
  assert int(empty.info().failed) == 4


def test_what_a_client_trains_beside_its_model_counts_too():
  other = TRAINED._replace(
    steps=jnp.array([1, 1, 1, 0, 1]), finite=jnp.array([True, True, True, True, False])
  )
  both = TRAINED.together_with(other)
  assert both.steps.tolist() == [7, 11, 1, 0, 3]
  assert both.finite.tolist() == [True, False, True, True, False]
  assert both.sizes is TRAINED.sizes
