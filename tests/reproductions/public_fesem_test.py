"""FeSEM of public code, beside float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fesem_jax.core.types import Cohort
from reproductions import public_fesem
from tests.support import helpers, methods, reference

DATA, LOCAL, KEY = methods.federation(), helpers.local(devices=2), jax.random.key(4)


def test_a_chain_trains_each_client_from_the_model_before():
  method = public_fesem.chained(LOCAL, num_clusters=2)
  clusters = np.arange(6) % 2
  state = methods.initial(method, DATA)._replace(assignment=jnp.asarray(clusters))
  after, _ = jax.jit(method.step)(state, DATA, helpers.everyone(DATA), KEY)
  like = reference.from_params(state.centers, 0)
  train, sizes = (
    methods.reference_training(LOCAL, DATA, like, KEY),
    DATA.sizes(np.arange(6)),
  )
  for k in range(2):
    model, models, own = reference.flat(like), [], np.flatnonzero(clusters == k)
    for i in own:
      model = train(i, model)
      models.append(model)
    mean = np.average(models, axis=0, weights=sizes[own])
    methods.assert_close(reference.vectors(after.centers)[k], mean)


def test_one_client_moves_the_shared_center():
  method = public_fesem.one_client_a_round(LOCAL)
  state = methods.initial(method, DATA)
  after, _ = jax.jit(method.step)(state, DATA, helpers.everyone(DATA), KEY)
  like = reference.from_params(state.centers, 0)
  train = methods.reference_training(LOCAL, DATA, like, KEY)
  models = [train(i, reference.flat(like)) for i in range(6)]
  distances = np.abs(np.stack(models) - reference.vectors(after.centers)).max(axis=1)
  assert sorted(distances < 1e-5) == [False] * 5 + [True]


def test_moments_pass_from_client_to_client():
  local = helpers.local(optimizer=optax.sgd(0.1, momentum=0.5), devices=2)
  method = public_fesem.one_optimizer(local)
  state = methods.initial(method, DATA)
  after, _ = jax.jit(method.step)(state, DATA, helpers.everyone(DATA), KEY)
  like = reference.from_params(state.centers, 0)
  moments, models = 0 * reference.flat(like), []
  for i in jax.random.permutation(KEY, 6).tolist():
    model = reference.flat(like)
    for x, y in helpers.batches(DATA, local.schedule, i, KEY):
      _, gradient = reference.loss_and_gradient(methods.unflatten(model, like), x, y)
      moments = 0.5 * moments + reference.flat(gradient)
      model = model - 0.1 * moments
    models.append(model)
  methods.assert_close(reference.vectors(after.centers)[0], models[0])
  trace = reference.from_params(after.moments[0].trace)
  methods.assert_close(reference.flat(trace), moments)


def test_clients_between_equal_centers_join_the_first():
  method = public_fesem.equal_centers(LOCAL, num_clusters=3)
  state = methods.initial(method, DATA)._replace(assignment=jnp.asarray([2, 1] * 3))
  cohort = Cohort(jnp.asarray([0, 1, 5, 6]), everyone=False)
  after, _ = jax.jit(method.step)(state, DATA, cohort, KEY)
  assert after.assignment.tolist() == [0, 0, 2, 1, 2, 0]
