"""Models with BatchNorm train against float64, and their statistics are averaged."""

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict

from fesem_jax import algorithms, models
from fesem_jax.core import tree
from fesem_jax.utils.errors import UserError
from tests.support import batch_norm, helpers
from tests.support.methods import (
  METHODS,
  ONCE,
  SIZES,
  assert_close,
  federation,
  initial,
  run,
)
from tests.support.nights import rest_by_night

RATE = 0.1


def of_linen():
  return models.from_flax(batch_norm.LinenNet(), helpers.SHAPE)


def local_of(model=None, devices=1, optimizer=None, **options):
  # Batches of 6 leave no batch of one example, whose variance is 0 but for rounding.
  options = {'batch_size': 6, 'epochs': 2} | options
  local = helpers.local(devices=devices, optimizer=optimizer, **options)
  return local._replace(model=of_linen() if model is None else model)


def reference_models(local, data, starts, r, **options):
  key = jax.random.fold_in(jax.random.key(9), r)
  return [
    batch_norm.local_sgd(
      start, helpers.batches(data, local.schedule, i, key), RATE, **options
    )
    for i, start in enumerate(starts)
  ]


def assert_models(got, want, rtol=1e-3):
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert_close(x, y, rtol=rtol)


def test_fed_avg_with_batch_norm_matches_float64_reference():
  data = helpers.federation(SIZES)  # Batches of 4 leave ragged last ones.
  decay = optax.chain(optax.add_decayed_weights(0.05), optax.sgd(RATE))
  local = local_of(of_linen(), optimizer=decay)
  algorithm = algorithms.build('fed_avg', local)
  state = initial(algorithm, data)
  model = batch_norm.from_params(state.params, 0)
  for r in (1, 2, 3):
    each = reference_models(local, data, [model] * len(SIZES), r, decay=0.05)
    model = batch_norm.mean(each, SIZES)
  state, _ = run(algorithm, data)
  got = tree.unstack(state.params, 0)
  assert_models(got, model)
  x = np.asarray(data.x)[:5]
  assert_close(local.model.apply(got, x), batch_norm.logits(model, x), rtol=1e-3)


def test_fesem_compares_weights_alone_and_averages_statistics_too():
  data, local = federation(), local_of(chunk=4)
  algorithm = algorithms.build('fesem', local, num_clusters=2, prox_lambda=0.2)
  state = initial(algorithm, data)
  centers = [batch_norm.from_params(state.centers, k) for k in range(2)]
  assignment = np.asarray(state.assignment)
  for r in (1, 2, 3):
    starts = [centers[k] for k in assignment]
    each = reference_models(local, data, starts, r, prox=0.2)
    assignment = np.array(
      [np.argmin([batch_norm.distance(w, c) for c in centers]) for w in each]
    )
    for k in range(2):
      members = [w for w, cluster in zip(each, assignment, strict=True) if cluster == k]
      centers[k] = batch_norm.mean(members) if members else centers[k]
  state, _ = run(algorithm, data)
  np.testing.assert_array_equal(state.assignment, assignment)
  for k in range(2):
    assert_models(tree.unstack(state.centers, k), centers[k])


def test_statistics_do_not_move_a_client_to_another_cluster():
  compare = algorithms.comparison.build('all', of_linen())
  params = of_linen().init(jax.random.key(0))
  centers = tree.repeat(params, 2)
  centers['dense']['bias'] = centers['dense']['bias'].at[1].add(1.0)
  one = tree.expand(params)
  one['norm'] = {**one['norm'], 'mean': one['norm']['mean'] + 100.0}
  nearest, distance, _ = compare.nearest(one, compare.prepare(compare.part(centers)))
  assert (nearest[0], distance[0]) == (0, 0.0)


@pytest.mark.parametrize(
  ('name', 'options'),
  rest_by_night(
    [
      ('fed_avg', {'server_optimizer': optax.sgd(0.5)}),
      ('fed_dane', {'prox_mu': 0.1}),
      ('scaffold', {}),
    ]
  ),
)
def test_statistics_are_the_mean_of_the_clients(name, options):
  """Steps of the server, and corrections of gradients, do not act on them."""
  data, local = helpers.federation((8, 8, 8)), local_of(steps=1, batch_size=0)
  algorithm = algorithms.build(name, local, **options)
  state = initial(algorithm, data)
  step = jax.jit(algorithm.step)
  for r in range(2):
    model = batch_norm.from_params(state.params, 0)
    state, _ = step(
      jax.device_get(state), data, helpers.everyone(data), jax.random.key(r)
    )
    each = [batch_norm.step(model, *data.client(i), RATE) for i in range(3)]
    want = batch_norm.mean(each)['norm']
    for statistic in batch_norm.STATISTICS:
      assert_close(state.params['norm'][statistic][0], want[statistic], rtol=1e-4)


def test_frozen_layers_of_train_only_still_count_their_batches():
  model = models.train_only(of_linen(), ['logits'])
  params = model.init(jax.random.key(0))
  assert sorted(params['norm']) == ['mean', 'var']
  data, local = helpers.federation((6, 7)), local_of(model)
  state, _ = run(algorithms.build('fed_avg', local), data, rounds=1)
  assert sorted(state.params) == ['logits', 'norm']
  assert np.abs(state.params['norm']['mean']).max() > 0


REFUSED = [
  'apfl', 'cfl_gp', 'fed_ala', 'fed_amp', 'fed_buff', 'fed_cluster', 'fed_dyn',
  'fed_group', 'fed_gwc', 'fed_nova', 'flux', 'moon', 'p_fed_me', 'per_fed_avg',
  'robust', 'stocfl',
]  # fmt: skip


OTHERS = [METHODS[i] for i in ONCE if METHODS[i][0] not in (*REFUSED, 'fesem_ma')]


@pytest.mark.nightly
@pytest.mark.parametrize(('name', 'options'), OTHERS, ids=[name for name, _ in OTHERS])
def test_all_other_methods_train_a_model_with_statistics(name, options):
  data, local = federation(), local_of()
  algorithm = algorithms.build(name, local, **options)
  state, infos = run(algorithm, data, rounds=2)
  used = algorithm.deployed(state, data)
  for stack in (used.shared, used.personal):
    for path, x in flatten_dict(stack or {}).items():
      assert x is None or np.isfinite(x).all()
      if path[-1] == 'var' and x is not None:
        assert (np.asarray(x) > 0).all()
        assert np.abs(np.asarray(x) - 1).max() > 1e-3
  assert np.isfinite(infos[-1].train_loss)


class Transposed(nn.Module):
  """Normalizes over the examples of each feature, as if these were examples."""

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.BatchNorm(not train, axis=0)(x.T).T
    return nn.Dense(3)(x)


def test_examples_are_in_the_first_axis_of_batch_norm():
  model = models.from_flax(Transposed(), helpers.SHAPE)
  params = model.init(jax.random.key(0))
  with pytest.raises(UserError, match='BatchNorm'):
    model.apply_train(params, np.ones((4, 6)), jax.random.key(1), np.ones(4))


def test_nnx_streams_of_dropout_beside_batch_norm():
  class Both(nnx.Module):
    def __init__(self, rngs):
      self.norm = nnx.BatchNorm(6, rngs=rngs)
      self.drop = nnx.Dropout(0.5, rngs=rngs)
      self.logits = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
      return self.logits(self.drop(self.norm(x)))

  model = models.from_flax(lambda rngs: Both(rngs=rngs), helpers.SHAPE)
  params, x, ones = model.init(jax.random.key(0)), np.ones((2, 6)), np.ones(2)
  first, second = (
    model.apply_train(params, x + np.eye(2, 6), jax.random.key(i), ones)[0]
    for i in (0, 1)
  )
  assert np.abs(first - second).max() > 0
