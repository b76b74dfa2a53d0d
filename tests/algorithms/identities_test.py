"""Methods that reduce to each other for some options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import tree
from fesem_jax.server import comparison
from tests.support import helpers
from tests.support.methods import assert_close, federation, initial, matrix, run


@functools.lru_cache(maxsize=4)
def average_of(weighting, **training):
  """FedAvg and its compiled round."""
  local = helpers.local(hidden=(), **training)
  algorithm = algorithms.build('fed_avg', local, weighting=weighting)
  return algorithm, jax.jit(algorithm.step)


def after_fed_avg(first, weighting, **training):
  """The model [1, P] of FedAvg after three rounds from a first one, and their infos."""
  data, (algorithm, step) = federation(), average_of(weighting, **training)
  state, infos = initial(algorithm, data)._replace(params=first), []
  for r in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), r)
    state, info = step(jax.device_get(state), data, helpers.everyone(data), key)
    infos.append(info)
  return matrix(state.params), infos


# By night: rounds that `make test` compares with float64 for two clusters and more.
ALSO_BY_REFERENCE = [
  ('hypo_cluster', {'num_clusters': 1}, 'uniform', {}),
  ('fed_cluster', {'max_clusters': 1}, 'by_examples', {}),
  ('cfl_gp', {'num_clusters': 1}, 'uniform', {}),
  ('clove', {'num_clusters': 1}, 'by_examples', {}),
  ('pacfl', {'num_clusters': 1}, 'by_examples', {}),
  ('fed_group', {'num_clusters': 1}, 'by_examples', {}),
  ('fed_drift', {'max_clusters': 1, 'start_alone': False}, 'by_examples', {}),
  ('stocfl', {'stocfl_tau': -1.0, 'stocfl_lambda': 0.0}, 'uniform', {}),
  ('fed_em', {'num_clusters': 1}, 'by_examples', {}),
  ('fed_rc', {'num_clusters': 1}, 'by_examples', {}),
  # Of one model and a large mu, all clients weigh the same.
  ('fed_few', {'num_clusters': 1, 'few_mu': 1e7}, 'uniform', {}),
]


@pytest.mark.parametrize(
  ('name', 'options', 'weighting', 'training'),
  [
    ('fesem', {'num_clusters': 1, 'prox_lambda': 0.0}, 'uniform', {}),
    ('flux', {'warmup_rounds': 9}, 'by_examples', {}),  # While it warms up.
    *(pytest.param(*row, marks=pytest.mark.nightly) for row in ALSO_BY_REFERENCE),
  ],
)
def test_clustered_methods_of_one_center_are_fed_avg(
  name, options, weighting, training
):
  data, method = (
    federation(),
    algorithms.build(name, helpers.local(hidden=()), **options),
  )
  first = jax.tree.map(lambda x: x[:1], initial(method, data).centers)
  state, infos = run(method, data)
  want, of_average = after_fed_avg(first, weighting, **training)
  assert_close(matrix(state.centers)[:1], want, rtol=1e-6, atol=1e-7)
  if name in ('fed_em', 'fed_rc'):
    np.testing.assert_array_equal(state.mixture, np.ones((6, 1)))
    for a, b in zip(infos, of_average, strict=True):
      assert_close(a.train_loss, b.train_loss, rtol=1e-6)
  elif name != 'stocfl':
    assert not np.asarray(state.assignment).any()
  if name == 'stocfl':  # And the model of no cluster.
    assert_close(matrix(state.centers)[-1:], want, rtol=1e-6, atol=1e-7)
    assert infos[0].clusters.sizes.tolist() == [6] + [0] * 6
  if name == 'fed_cluster':
    assert infos[-1].clusters.sizes.tolist() == [6]


def test_fed_dane_of_one_full_batch_step_is_fed_avg_of_who_did_not_drop_out():
  # c - rate * (grad F_i + g - grad F_i), averaged, is c - rate * g.
  data = federation()
  local = helpers.local(batch_size=0, steps=1, hidden=())
  local = local._replace(dropout_rate=0.5)
  dane, infos = run(algorithms.build('fed_dane', local, prox_mu=0.0), data)
  avg, _ = run(algorithms.build('fed_avg', local, weighting='uniform'), data)
  assert 0 < min(int(i.trained) for i in infos) < 6
  assert_close(matrix(dane.params), matrix(avg.params))


def test_fesem_ma_from_a_common_start_is_fesem():
  # Clients that start from one model are nearest to it with their units where they are.
  data, local = federation(), helpers.local(epochs=2)
  plain, infos = run(algorithms.build('fesem', local, num_clusters=2), data)
  matched, others = run(algorithms.build('fesem_ma', local, num_clusters=2), data)
  np.testing.assert_array_equal(plain.assignment, matched.assignment)
  assert_close(matrix(plain.centers), matrix(matched.centers), rtol=1e-5, atol=1e-6)
  for a, b in zip(infos, others, strict=True):
    assert_close(a.clusters.objective, b.clusters.objective, rtol=1e-4)


def test_fesem_ma_averages_permuted_copies_where_fesem_mixes_their_units():
  data, local = helpers.federation([8]), helpers.local()
  model = jax.jit(local.model.init)(jax.random.key(3))
  rng = np.random.default_rng(0)

  def permuted(order):
    hidden = {n: a[..., order] for n, a in model['dense0'].items()}
    logits = model['logits'] | {'kernel': model['logits']['kernel'][order]}
    return {'dense0': hidden, 'logits': logits}

  copies = [permuted(rng.permutation(5)) for _ in range(6)]
  stack = jax.tree.map(lambda *rows: jnp.stack(rows), *copies)
  means = {}
  for cluster_on in ('all', 'matched'):
    compare = comparison.build(cluster_on, local.model)
    known = compare.prepare(compare.part(tree.expand(model)))
    _, distance, models = compare.nearest(stack, known)
    means[cluster_on] = jax.tree.map(lambda rows: rows.mean(axis=0), models)
    assert (distance.max() < 1e-6) == (cluster_on == 'matched')
  x, _ = data.client(0)
  want = local.model.apply(model, x)
  assert_close(local.model.apply(means['matched'], x), want)
  assert np.abs(local.model.apply(means['all'], x) - want).max() > 0.05
