"""FedGroup against float64, and the groups that it finds."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms
from fesem_jax.algorithms.fed_group import FedGroupState
from fesem_jax.core import prng_streams, sampling, tree
from tests.support import helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  over_seeds,
  reference_round,
  run,
)

KEY = jax.random.key(0)


def first_updates(local, data, start, ids, key=KEY):
  """[S, P] updates of one epoch from the first model."""
  draw_key = prng_streams.fold(key, prng_streams.LOCAL)
  models = reference_round(local, data, [start] * len(ids), ids, draw_key)
  return np.stack([reference.flat(w) for w in models]) - reference.flat(start)


def grouped(updates):
  """[S] two groups by the cosines with the first two left singular vectors."""
  left = np.linalg.svd(updates.T, full_matrices=False)[0][:, :2]
  cosine = updates @ left / np.linalg.norm(updates, axis=1)[:, None]
  own = reference.best_kmeans(cosine, 2)[0]
  return own if own[0] == 0 else 1 - own  # Numbered by their first clients.


def test_others_join_the_group_whose_direction_is_nearest(monkeypatch):
  data, local = federation(), helpers.local(epochs=1)
  some, asked = sampling.all_or_sample(KEY, data, 3, local.mesh), []

  def sample(key, data, number, mesh):
    asked.append(number)
    return some

  module = sys.modules['fesem_jax.algorithms.fed_group']
  monkeypatch.setattr(module, 'all_or_sample', sample)
  algorithm = algorithms.build('fed_group', local, num_clusters=2)
  state = initial(algorithm, data, KEY)
  assert asked == [40]  # 20 for each group.
  some = some.ids.tolist()
  assert len(set(some)) == 3 < 6
  start = reference.from_params(state.start, 0)
  updates = first_updates(local, data, start, range(6))
  own = grouped(updates[sorted(some)])
  directions = [updates[sorted(some)][own == k].mean(axis=0) for k in (0, 1)]
  assert_close(reference.vectors(state.directions), directions, rtol=1e-3)
  lengths = np.linalg.norm(directions, axis=1)
  expected = (updates @ np.transpose(directions) / lengths).argmax(axis=1)
  expected[sorted(some)] = own
  np.testing.assert_array_equal(state.assignment, expected)


@functools.cache
def planted():
  """Seeds share its programs."""
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  return algorithms.build('fed_group', local, num_clusters=4)


@over_seeds(2)
def test_recovers_planted_groups(seed):
  groups = np.arange(16) % 4
  data = helpers.federation([60] * 16, seed=seed, groups=groups)
  state, infos = run(planted(), data, rounds=3, seed=seed)
  assert adjusted_rand_score(groups, state.assignment) == 1.0
  assert infos[-1].train_loss < infos[0].train_loss
  # Clients that were not in the run join the same groups, wherever they are.
  order = np.random.default_rng(seed).permutation(16)
  used = jax.jit(planted().unseen_models)(state, data.reorder(order, num_clients=16))
  np.testing.assert_array_equal(used.choice, np.asarray(state.assignment)[order])


def along(local, data, client, start):
  """[2, ...] the gradient of a client's loss at a model [1, ...], and against it."""
  x, y = data.client(client)
  model = tree.unstack(start, 0)
  result = jax.grad(lambda p: local.model.loss(local.model.apply(p, x), y).mean())(
    model
  )
  return jax.tree.map(lambda g: jnp.stack([g, -g]), result)


def test_clients_from_elsewhere_join_by_one_example_and_without_any_the_first_group():
  data, local = helpers.federation([1, 0, 3]), helpers.local(hidden=())
  method = algorithms.build('fed_group', local, num_clusters=2)
  start = tree.expand(local.model.init(KEY))
  own, directions = jnp.zeros(3, jnp.int32), along(local, data, 0, start)
  state = FedGroupState(tree.repeat(tree.unstack(start, 0), 2), own, start, directions)
  used = jax.jit(method.unseen_models)(state, data)
  assert used.choice[:2].tolist() == [1, 0]  # It trains against its gradient.
