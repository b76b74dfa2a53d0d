"""What clients keep from round to round: statistics and optimizer state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax import algorithms, models
from fesem_jax.algorithms.wrappers import with_client_memory
from fesem_jax.core.types import Cohort
from tests.support import batch_norm, helpers, reference, runs
from tests.support.methods import assert_close, run, unflatten

SIZES = (8, 5, 6, 7)


def with_norm(devices=1, **changes):
  local = helpers.local(devices=devices, epochs=2)
  model = models.from_flax(batch_norm.LinenNet(), helpers.SHAPE)
  return local._replace(model=model, batch_stats='local', **changes)


def test_statistics_that_clients_keep_match_float64_reference():
  data, local = helpers.federation(SIZES), with_norm()
  algorithm = with_client_memory(algorithms.build('fed_avg', local))
  state = jax.jit(algorithm.init)(jax.random.key(0), data)
  model = batch_norm.from_params(state.method.params, 0)
  running = [model['norm']] * 4
  step, first = jax.jit(algorithm.step), model['norm']
  cohorts = [[0, 1, 2, 3], [0, 2], [1, 2]]
  for r, ids in enumerate(cohorts):
    key = jax.random.fold_in(jax.random.key(9), r)
    cohort = Cohort(jnp.array(ids, jnp.int32), everyone=False)
    state, _ = step(jax.device_get(state), data, cohort, key)
    each = []
    for i in ids:
      statistics = {name: running[i][name] for name in batch_norm.STATISTICS}
      start = model | {'norm': model['norm'] | statistics}
      batches = helpers.batches(data, local.schedule, i, key)
      each.append(batch_norm.local_sgd(start, batches, 0.1))
      running[i] = each[-1]['norm']
    model = batch_norm.mean(each, [SIZES[i] for i in ids])
  used = algorithm.deployed(state, data).params(4)
  for name in ('scale', 'bias'):
    assert_close(used['norm'][name][0], model['norm'][name], rtol=1e-3)
  assert_close(used['dense']['kernel'][3], model['dense']['kernel'], rtol=1e-3)
  for name in batch_norm.STATISTICS:
    want = np.stack([each[name] for each in running])
    assert_close(used['norm'][name], want, rtol=1e-3)
    # The server never gets any.
    assert_close(state.method.params['norm'][name][0], first[name])
  numbers = sum(x.size for x in jax.tree.leaves(helpers.first_model(local)))
  assert algorithm.traffic.model == 4 * (numbers - 2 * 5)


def momentum_local(devices=1, **changes):
  optimizer = optax.sgd(0.1, momentum=0.9)
  local = helpers.local(devices=devices, optimizer=optimizer, epochs=2)
  return local._replace(keep_optimizer_state=True, **changes)


def test_kept_momentum_matches_float64_reference():
  data, local = helpers.federation(SIZES), momentum_local()
  algorithm = with_client_memory(algorithms.build('fed_avg', local))
  state = jax.jit(algorithm.init)(jax.random.key(0), data)
  model = reference.from_params(state.method.params, 0)
  like, traces = model, [None] * 4
  step = jax.jit(algorithm.step)
  for r, ids in enumerate([[0, 1, 2, 3], [0, 2], [1, 2]]):
    key = jax.random.fold_in(jax.random.key(9), r)
    cohort = Cohort(jnp.array(ids, jnp.int32), everyone=False)
    state, _ = step(jax.device_get(state), data, cohort, key)
    each = []
    for i in ids:
      w, m = model, traces[i] if traces[i] is not None else np.zeros(())
      for x, y in helpers.batches(data, local.schedule, i, key):
        gradient = reference.flat(reference.loss_and_gradient(w, x, y)[1])
        m = gradient + 0.9 * m
        w = unflatten(reference.flat(w) - 0.1 * m, like)
      traces[i] = m
      each.append(reference.flat(w))
    mean = np.average(each, axis=0, weights=[SIZES[i] for i in ids])
    model = unflatten(mean, like)
  got = reference.flat(reference.from_params(state.method.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)


def test_a_client_that_fails_keeps_its_optimizer_state():
  data, local = helpers.federation((6, 5)), momentum_local()
  data.x[0] = np.inf  # Of client 0.
  algorithm = with_client_memory(algorithms.build('fed_avg', local))
  assert not algorithm.local.keep_optimizer_state  # A run adds no second memory.
  state, info = run(algorithm, data, rounds=1)
  begun = state.memory['optimizer'][1]
  assert (info[0].failed, begun.tolist()) == (1, [False, True])
  memory = jax.tree.leaves(jax.device_get(state.memory))
  assert all(np.isfinite(x).all() for x in memory)


def test_a_run_goes_on_after_a_resume_with_what_clients_keep(tmp_path):
  data = helpers.federation(SIZES)
  optimizer = optax.adam(0.01)
  model = models.from_flax(batch_norm.LinenNet(), helpers.SHAPE)
  local = fj.local_training(model, optimizer, batch_size=4)
  local = local._replace(keep_optimizer_state=True, batch_stats='local')

  algorithm = algorithms.build('fed_avg', local)

  def result(folder, rounds):
    options = {'clients_per_round': 3, 'eval_every': 2, 'checkpoint_every': 1}
    options |= {'rounds': rounds, 'workdir': tmp_path / folder}
    return runs.simulate(algorithm, data, data, **options)

  whole = result('whole', 4)
  result('parts', 2)
  parts = result('parts', 4)
  jax.tree.map(np.testing.assert_array_equal, whole.models, parts.models)
  assert whole.models.personal['norm']['mean'].shape == (4, 5)


@pytest.mark.parametrize(
  'where', [pytest.param('client', marks=pytest.mark.nightly), 'server']
)
def test_statistics_that_stay_with_clients_get_no_noise_and_are_not_compressed(where):
  data, seen = helpers.federation(SIZES), []
  private = fj.differential_privacy(1.0, 0.5, where=where, delta=0)

  def watched(key, start, trained):
    seen.append(sum(x.size for x in jax.tree.leaves(trained)))
    return trained

  sends = fj.chained(private, fj.compression('top_k(0.5, error_feedback=False)'))
  sends = fj.chained(sends, fj.Sends(watched, num_bytes=sends.num_bytes))
  local = with_norm(sends=sends)
  algorithm = with_client_memory(
    algorithms.build('fesem', local, num_clusters=2, init_models='common')
  )
  state, _ = run(algorithm, data, rounds=2)
  first = helpers.first_model(local)['norm']
  for name in batch_norm.STATISTICS:  # The server has those of the first model.
    for center in np.asarray(state.method.centers['norm'][name]):
      np.testing.assert_array_equal(center, first[name])
  numbers = sum(x.size for x in jax.tree.leaves(helpers.first_model(local)))
  assert set(seen) == {numbers - 2 * 5}
  used = algorithm.deployed(state, data).params(4)
  assert (np.asarray(used['norm']['var']) > 0).all()
  assert np.ptp(np.asarray(used['norm']['mean']), axis=0).max() > 1e-3


def test_clients_whom_a_method_trains_in_another_order_have_what_they_kept():
  data, local = helpers.federation(SIZES), momentum_local()

  def turned(by):
    method = algorithms.build('fed_avg', local)

    def step(state, data, cohort, key):  # In another order from the second round on.
      ids = jnp.roll(cohort.ids, by * (state.params['logits']['bias'][0, 0] != 0))
      return method.step(state, data, Cohort(ids, everyone=False), key)

    return with_client_memory(method._replace(step=step))

  states = []
  for by in (0, 1):
    algorithm = turned(by)
    state = jax.jit(algorithm.init)(jax.random.key(0), data)
    step = jax.jit(algorithm.step)
    for r in range(3):
      state, _ = step(
        jax.device_get(state), data, helpers.everyone(data), jax.random.key(r)
      )
    states.append(state)
  for a, b in zip(*map(jax.tree.leaves, states), strict=True):
    assert_close(a, b, rtol=1e-5)
