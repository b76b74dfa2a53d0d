"""Hyperparameters are arguments of programs: others compile nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms
from fesem_jax.core import hyperparameters
from fesem_jax.core.hyperparameters import Arguments, variable
from fesem_jax.run.runner import Runner
from fesem_jax.run.spec import Spec
from fesem_jax.server import optimizers as server_optimizers
from tests.support import helpers
from tests.support.nights import rest_by_night

X = np.arange(4, dtype=np.float32)


def called(make, values, first):
  """A function of x made with first values, called with others, and its decisions."""
  numbers, decisions = hyperparameters.named(first)
  arguments, fn = Arguments(decisions), make(**numbers)
  compiled = jax.jit(lambda x, n: arguments.bind(n, fn, x))
  compiled(X, arguments.values(first))
  return compiled(X, arguments.values(values)), decisions


def scaled(number):
  def fn(x):
    def body(_, total):
      return total + variable(number) * x

    return jax.lax.fori_loop(0, 3, body, jnp.zeros_like(x))

  return fn


MAKERS = {
  'variable': (scaled, lambda r: 3 * r * X),
  'expression': (lambda number: scaled((1 - number) / 2), lambda r: 1.5 * (1 - r) * X),
  'operator': (
    lambda number: lambda x: number * x - x / number,
    lambda r: r * X - X / r,
  ),
  'array on the left': (lambda number: lambda x: x * number, lambda r: r * X),
  'optimizer': (
    lambda number: lambda x: optax.sgd(number).update(x, optax.sgd(1.0).init(x))[0],
    lambda r: -r * X,
  ),
}


@pytest.mark.parametrize('name', MAKERS)
def test_hyperparameters_are_arguments_of_programs(name):
  make, want = MAKERS[name]
  result, decisions = called(make, {'number': 0.3}, {'number': 0.5})
  np.testing.assert_allclose(result, want(0.3), rtol=1e-6)
  assert decisions.hold_for({'number': 0.7})


def test_what_python_decides_by_a_hyperparameter_is_no_argument():
  def make(number, steps):
    def fn(x):
      if number > 0.4:
        x = x + 1
      return x * variable(number) + np.float32(steps)

    return fn

  first = {'number': 0.5, 'steps': 2}
  result, decisions = called(make, first | {'number': 0.8}, first)
  np.testing.assert_allclose(result, (X + 1) * 0.8 + 2, rtol=1e-6)
  assert decisions.hold_for(first | {'number': 0.7})
  assert not decisions.hold_for(first | {'number': 0.3})
  assert not decisions.hold_for(first | {'number': 0.0})
  assert not decisions.hold_for(first | {'steps': 3})  # No program reads it.
  _, decisions = called(
    lambda number: scaled(float(number)), {'number': 1.0}, {'number': 2.0}
  )
  assert not decisions.hold_for({'number': 1.0})


def test_numbers_of_python_have_weak_types():
  numbers = Arguments().values({})
  assert [type(x) for part in numbers for x in part] == [float] * 24 + [int] * 8
  arguments = Arguments()
  fn = jax.jit(
    lambda n: arguments.bind(n, lambda: jnp.ones(2, jnp.bfloat16) * variable(0.5))
  )
  assert fn(numbers).dtype == jnp.bfloat16


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


DATA = [helpers.federation([6, 3, 9, 5], seed=seed) for seed in range(4)]


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
  ('scaffold', [{'server_learning_rate': 0.5}, {'server_learning_rate': 0.8}]),
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


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'options'), rest_by_night(NUMBERS, by_day=2), ids=[n for n, _ in NUMBERS]
)
def test_programs_of_a_method_read_every_number_that_it_declares(name, options):
  """With other values they give what the method of these values gives."""
  data, (first, values) = DATA[0], options
  plain = {
    n: v for n, v in first.items()
    if v == values[n] or not isinstance(v, int | float)
  }  # fmt: skip
  numbers = {n: v for n, v in first.items() if n not in plain} | {'dropout_rate': 0.1}
  hidden = (5,) if name in ('fed_ala', 'moon') else ()  # Of two parts.

  def make(learning_rate, dropout_rate, **values):
    optimizer = hyperparameters.optimizer(optax.sgd, learning_rate)
    local = helpers.local(chunk=4, hidden=hidden, optimizer=optimizer)
    local = local._replace(dropout_rate=dropout_rate)
    return algorithms.build(name, local, **plain, **values)

  first = numbers | {'learning_rate': 0.1}
  second = first | {n: values[n] for n in numbers.keys() & values.keys()}
  second |= {'learning_rate': 0.2, 'dropout_rate': 0.2}
  numbers_values, decisions = hyperparameters.named(first)
  arguments = Arguments(decisions)
  key, cohort = jax.random.key(0), dataclasses.replace(helpers.everyone(data), round=0)
  algorithm = make(**numbers_values)
  spec = Spec(algorithm=algorithm, train=data, test=data, rounds=1)
  runner = Runner(spec, (algorithm, arguments), (data, data), cohort, (), 1, 1)
  (_, start, *_), (_, step, *_), _ = runner.calls
  assert decisions.read == set(first)
  assert decisions.hold_for(second)
  numbers, algorithm = arguments.values(second), make(**second)
  state, want = start(key, data, numbers)[0], jax.jit(algorithm.init)(key, data)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), state, want
  )
  result = step(state, data, cohort, key, numbers)[0]
  want, _ = jax.jit(algorithm.step)(state, data, cohort, key)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), result, want
  )
