"""FedProx's stragglers, and what a round of any single model reports."""

import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.algorithms.common import stragglers
from tests.support import draws, helpers, reference
from tests.support.methods import SIZES, assert_close, federation, initial


def trained(local, data, model, epochs, key):
  """Each client after its own number of epochs: vectors, and mean losses."""
  ends, losses = [], []
  for i, own in enumerate(epochs):
    schedule = local.schedule._replace(epochs=own)
    batches = helpers.batches(data, schedule, i, key)
    end, loss = reference.local_sgd(model, batches, 0.1)
    ends.append(reference.flat(end))
    losses.append(loss)
  return np.array(ends), np.array(losses)


def test_stragglers_run_the_epochs_they_drew_and_still_count():
  data, local, key = federation(), helpers.local(epochs=4), jax.random.key(7)
  epochs = [draws.epochs_of(key, data, i, 0.5, 4) for i in range(6)]
  some = [draws.epochs_of(key, data, i, 1.0, 4) for i in range(6)]
  straggle = np.array(epochs) == some
  assert len({e for e, s in zip(epochs, straggle, strict=True) if s}) > 1
  assert not straggle.all()
  algorithm = algorithms.build('fed_prox', local, prox_mu=0.0, straggler_fraction=0.5)
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  state, info = jax.jit(algorithm.step)(state, data, helpers.everyone(data), key)
  ends, _ = trained(local, data, model, epochs, key)
  want = np.average(ends, axis=0, weights=SIZES)
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, want, rtol=1e-3)
  assert int(info.trained) == 6
  per_epoch = -(-np.array(SIZES) // 4)
  assert int(info.steps) == (per_epoch * epochs).sum()


def test_a_round_reports_only_who_did_not_drop_out():
  data, key = federation(), jax.random.key(4)
  local = helpers.local(epochs=2)._replace(dropout_rate=0.5)
  stays = [not draws.drops_out(key, data, i, 0.5) for i in range(6)]
  assert 1 < sum(stays) < 6
  algorithm = algorithms.build('fed_avg', local, weighting='uniform')
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  state, info = jax.jit(algorithm.step)(state, data, helpers.everyone(data), key)
  ends, losses = trained(local, data, model, [2] * 6, key)
  sizes = np.array(SIZES)
  assert int(info.trained) == sum(stays)
  assert int(info.failed) == 0
  assert int(info.steps) == (2 * -(-sizes // 4))[stays].sum()
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, ends[stays].mean(axis=0), rtol=1e-3)
  # The mean over examples, though clients weigh alike in the model.
  mean = np.average(losses[stays], weights=sizes[stays])
  assert abs(mean / losses[stays].mean() - 1) > 1e-2
  assert_close(info.train_loss, mean)


def test_where_all_straggle_each_draws_its_epochs_and_where_none_does_all_are_done():
  data, local, key = federation(), helpers.local(epochs=4), jax.random.key(7)
  everyone = helpers.everyone(data)
  found = stragglers.epochs(local, data, everyone, key, 1.0)
  assert found.tolist() == [draws.epochs_of(key, data, i, 1.0, 4) for i in range(6)]
  assert stragglers.epochs(local, data, everyone, key, 0.0) is None
