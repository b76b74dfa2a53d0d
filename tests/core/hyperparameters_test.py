"""Hyperparameters are arguments of programs: others compile nothing."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import schedules
from fesem_jax import algorithms
from fesem_jax.core import hyperparameters, sharding
from fesem_jax.core.hyperparameters import variable
from fesem_jax.run.programs import Programs
from fesem_jax.server import optimizers as server_optimizers
from tests.support import helpers
from tests.support.nights import rest_by_night
from tests.support.runs import simulate

X = np.arange(4, dtype=np.float32)


def scaled(number, offsets):
  def fn(x):
    def body(_, total):
      return total + variable(number) * (x + offsets)

    return jax.lax.fori_loop(0, 3, body, jnp.zeros_like(x))

  return fn


@pytest.mark.parametrize('devices', [1, 2])
def test_functions_that_differ_in_variables_share_a_program(devices):
  programs = Programs()
  x = sharding.replicate(X, sharding.client_mesh(devices))
  for number in (0.5, 2.0, 0.25):
    fn = scaled(number, np.zeros(4, np.float32))
    program = programs.compiled(('scaled', number), fn, x)
    np.testing.assert_array_equal(program(x), 3 * number * X)
  assert programs.count == 1


def test_functions_that_differ_in_anything_else_do_not():
  programs, offsets = Programs(), np.zeros(100, np.float32)
  x = np.ones(100, np.float32)
  for place in (0, 50):  # A longer text might leave the middle out.
    offsets = offsets.copy()
    offsets[place] = 1
    program = programs.compiled(('scaled', place), scaled(0.5, offsets), x)
    np.testing.assert_array_equal(program(x), 1.5 * (1 + offsets))
  zero = programs.compiled('zero', scaled(0, offsets), x)
  np.testing.assert_array_equal(zero(x), 0 * x)
  named = programs.compiled('named', lambda x: {'a': scaled(0.5, offsets)(x)}, x)
  assert set(named(x)) == {'a'}
  assert programs.count == 4


def test_an_optimizer_of_variables_is_the_same_optimizer():
  params, gradients = {'w': jnp.asarray(X)}, {'w': jnp.asarray(X[::-1])}
  for make, named in ((optax.sgd, {'momentum': 0.9}), (optax.adam, {})):
    ours, theirs = hyperparameters.optimizer(make, 0.3, **named), make(0.3, **named)
    states = ours.init(params), theirs.init(params)
    for _ in range(2):
      ours_update, ours_state = ours.update(gradients, states[0], params)
      theirs_update, theirs_state = theirs.update(gradients, states[1], params)
      np.testing.assert_array_equal(ours_update['w'], theirs_update['w'])
      states = ours_state, theirs_state


@pytest.mark.parametrize(
  'forms',
  [
    ('cosine:10', 'cosine:20'),
    ('exponential:0.9', 'exponential:0.5'),
    ('step:2:0.5', 'step:3:0.1'),
  ],
)
def test_schedules_of_one_form_share_a_program(forms):
  programs = Programs()
  values = []
  for form in forms:
    program = programs.compiled(form, schedules.build(form), np.int32(0))
    values.append([float(program(np.int32(r))) for r in range(5)])
  assert programs.count == 1
  assert values[0] != values[1]


DATA = [helpers.federation([6, 3, 9, 5], seed=seed) for seed in range(4)]


def trained(programs, name, seed, rate, **options):
  optimizer = hyperparameters.optimizer(optax.sgd, rate)
  local = helpers.local(optimizer=optimizer, chunk=4, hidden=())
  return simulate(
    algorithms.build(name, local, **options), *DATA[2 * seed : 2 * seed + 2], rounds=1,
    seed=seed, programs=programs, progress=False, finetune_epochs=0,
  )  # fmt: skip


@pytest.fixture(scope='module')
def runs():
  """Runs of FeSEM by number and seed, and how many programs each left behind."""
  programs, counts, results = Programs(), [], []
  for seed, rate, prox in (
    (0, 0.1, 0.01),
    (0, 0.2, 0.01),
    (0, 0.3, 0.1),
    (1, 0.2, 0.1),
  ):
    options = {'num_clusters': 2, 'prox_lambda': prox}
    results.append(trained(programs, 'fesem', seed, rate, **options))
    counts.append(programs.count)
  return results, counts


@pytest.mark.nightly
def test_rates_penalties_and_seeds_share_all_programs_of_a_run(runs):
  results, counts = runs
  assert counts == [counts[0]] * 4
  losses = [r.history[-1]['train_loss'] for r in results]
  assert len(set(losses)) == 4


@pytest.fixture(scope='module')
def alone():
  """The third of `runs` with constants, and when XLA compiled: [n, 2] seconds."""
  spans = []

  def listen(event, duration, **_):
    if event == '/jax/core/compile/backend_compile_duration':
      spans.append((time.perf_counter() - duration, time.perf_counter()))

  local = helpers.local(rate=0.3, chunk=4, hidden=())
  algorithm = algorithms.build('fesem', local, num_clusters=2, prox_lambda=0.1)
  options = {'finetune_epochs': 0, 'progress': False}
  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    return simulate(algorithm, *DATA[:2], rounds=1, **options), np.array(spans)
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_shared_program_gives_what_the_method_itself_gives(runs, alone):
  for a, b in zip(
    jax.tree.leaves(runs[0][2].state), jax.tree.leaves(alone[0].state), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_compile_seconds_count_all_programs_of_a_run(alone):
  result, spans = alone
  timing = result.summary['timing']
  # What is compiled at the same time counts once.
  starts, ends = spans[spans[:, 0].argsort()].T
  latest = np.maximum.accumulate(ends)
  before = np.concatenate([[-np.inf], latest[:-1]])
  of_xla = (latest - np.maximum(starts, before)).clip(0).sum()
  assert 0 < of_xla <= timing['compile_seconds'] <= timing['total_seconds']


NUMBERS = [
  ('fed_prox', [{'prox_mu': 0.1}, {'prox_mu': 1.0}]),
  ('fed_dane', [{'prox_mu': 0.1}, {'prox_mu': 1.0}]),
  ('ditto', [{'ditto_lambda': 0.1}, {'ditto_lambda': 1.0}]),
  (
    'fed_soft',
    [{'soft_lambda': 0.1}, {'soft_lambda': 1.0}],
  ),
  (
    'p_fed_me',
    [
      {'pfedme_lambda': n, 'inner_learning_rate': n / 100, 'server_learning_rate': n}
      for n in (1.0, 2.0)
    ],
  ),
  (
    'per_fed_avg',
    [
      {'meta_gradient': 'hessian_free', 'adaptation_rate': n}
      for n in (0.1, 0.2)
    ],
  ),
  ('apfl', [{'apfl_alpha': 0.25}, {'apfl_alpha': 0.75}]),
  ('fed_ala', [{'ala_rate': 0.5}, {'ala_rate': 1.0}]),
  (
    'fed_amp',
    [{'amp_lambda': n, 'amp_sigma': n} for n in (1.0, 2.0)],
  ),
  ('l2gd', [{'l2gd_lambda': n, 'aggregation_probability': n / 2} for n in (0.5, 1.0)]),
  (
    'stocfl',
    [{'stocfl_tau': n, 'stocfl_lambda': n} for n in (0.5, 0.9)],
  ),
  ('scaffold', [{'server_learning_rate': 0.5}, {'server_learning_rate': 1.0}]),
  ('fed_dyn', [{'dyn_alpha': 0.1}, {'dyn_alpha': 1.0}]),
  ('moon', [{'moon_mu': n, 'moon_temperature': n} for n in (0.5, 1.0)]),
  ('fed_dist', [{'server_learning_rate': 0.5}, {'server_learning_rate': 0.1}]),
  (
    'fed_opt',
    [
      {'server_optimizer': server_optimizers.adam(0.1, 0.9, 0.99, 1e-3)},
      {'server_optimizer': server_optimizers.adam(0.3, 0.5, 0.9, 1e-2)},
    ],
  ),
  ('fed_avg', [{'aggregation': f'trimmed_mean({b})'} for b in (0.2, 0.3)]),
  (
    'fesem',
    [{'num_clusters': 2, 'recluster_every': n} for n in (4, 6)],
  ),
  (
    'robust',
    [{'num_clusters': 2, 'trim': t, 'init_tolerance': t / 10} for t in (0.1, 0.2)],
  ),
]  # fmt: skip


@pytest.mark.parametrize(
  ('name', 'options'), rest_by_night(NUMBERS, by_day=6), ids=[n for n, _ in NUMBERS]
)
def test_numbers_of_a_method_are_no_part_of_its_programs(name, options):
  data, texts, dropout = DATA[0], [], [0.1, 0.2]
  for number in range(2):
    hidden = (5,) if name in ('fed_ala', 'moon') else ()  # Of two parts.
    local = helpers.local(chunk=4, hidden=hidden)
    local = local._replace(dropout_rate=dropout[number])
    algorithm = algorithms.build(name, local, **options[number])
    key = jax.random.key(0)
    init = jax.jit(algorithm.init).trace(key, data)
    cohort = helpers.everyone(data)
    step = jax.jit(algorithm.step).trace(init.out_info, data, cohort, key)
    texts.append((str(init.jaxpr), str(step.jaxpr)))
  assert texts[0] == texts[1]
