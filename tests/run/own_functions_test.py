"""Functions of users that would not do what they seem to are told of or refused."""

import contextlib
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import fesem_jax as fj
from fesem_jax.run import checks, own_functions, rounds
from fesem_jax.run.programs import shared
from fesem_jax.run.spec import Spec
from fesem_jax.utils.notices import warn_once
from tests.support import helpers

KEY = jax.random.key(3)
GENERATOR = np.random.default_rng(0)
OWN_KEY, ON_HOST = 'from a key of its own', 'numbers on the host'


@pytest.fixture
def said(caplog):
  warn_once.cache_clear()
  with caplog.at_level(logging.WARNING):
    yield caplog
  warn_once.cache_clear()


def data_and_local():
  data = helpers.federation([6, 5])
  model = fj.models.build('logistic', data.example_shape, data.num_classes)
  return data, fj.local_training(model, optax.sgd(0.1))


def loss_of(noise):
  def loss(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs + noise(outputs), y)

  return loss


class Noisy(nn.Module):
  @nn.compact
  def __call__(self, x, train=False):
    x = x + np.random.normal() if train else x
    return nn.Dense(2)(x)


@pytest.mark.parametrize(
  ('change', 'word'),
  [
    ({'augmentation': lambda key, x: x + jax.random.normal(KEY, x.shape)}, OWN_KEY),
    ({'augmentation': lambda key, x: x + GENERATOR.normal(size=x.shape)}, ON_HOST),
    ({'augmentation': lambda key, x: x + jax.random.normal(key, x.shape)}, ''),
    (
      {'sends': fj.Sends(lambda key, start, w: jax.tree.map(
        lambda w: w + jax.random.normal(jax.random.key(0), w.shape), w))},
      OWN_KEY,
    ),
  ],
)  # fmt: skip
def test_numbers_that_are_always_the_same_are_told(change, word, said):
  data, local = data_and_local()
  own_functions.check(local._replace(**change), data)
  assert word in said.text
  assert bool(word) == bool(said.text)


def alike(key, start, w):
  return jax.tree.map(lambda w: w + jax.random.normal(key, w.shape), w)


def apart(key, start, w, draw=jax.random.normal):
  leaves, form = jax.tree.flatten(w)
  keys = jax.random.split(key, len(leaves))
  noise = [draw(k, shape=x.shape) for k, x in zip(keys, leaves, strict=True)]
  return jax.tree.map(jnp.add, w, jax.tree.unflatten(form, noise))


def in_loop(key, shape):
  return jax.random.poisson(key, 1.0)


def flipped(key, x):
  flips = jax.random.bernoulli(key, 0.5, x.shape[:1])
  sizes = jax.random.uniform(key, x.shape[:1])
  return jnp.where(flips, 1, -1)[:, None] * sizes[:, None] * x


def init(key):
  return {
    name: {'kernel': jax.random.normal(key, shape)}
    for name, shape in (('hidden', (6, 4)), ('logits', (4, 3)))
  }


def apply(params, x):
  return x @ params['hidden']['kernel'] @ params['logits']['kernel']


@pytest.mark.parametrize(('change', 'named'), [
    ({'sends': fj.Sends(alike)}, '`sends`'),
    ({'sends': fj.Sends(apart)}, ''),
    ({'sends': fj.Sends(functools.partial(apart, draw=in_loop))}, ''),
    ({'augmentation': flipped}, '`augmentation`'),
    ({'sends': fj.compression('random_k:0.5')}, ''),
    ({'model': fj.Model(init, apply)}, '`init` of the model'),
])  # fmt: skip
def test_arrays_that_are_drawn_from_one_key_are_told(change, named, said):
  data, local = data_and_local()
  own_functions.check(local._replace(**change), data)
  assert (f'{named} draws several times from one key' in said.text) == bool(named)
  assert bool(named) == bool(said.text)


def test_losses_and_models_that_draw_the_same_numbers_are_told(said):
  data, local = data_and_local()
  drawn = {
    OWN_KEY: lambda x: jax.random.normal(KEY, x.shape),
    ON_HOST: lambda x: np.random.normal(),
  }
  for word, noise in drawn.items():
    model = local.model._replace(loss=loss_of(noise))
    own_functions.check(local._replace(model=model), data)
    assert '`loss` of the model draws' in said.text
    assert word in said.text
  model = fj.models.from_flax(Noisy(), data.example_shape)
  own_functions.check(local._replace(model=model), data)
  assert '`apply_train` of the model draws numbers on the host' in said.text


def test_a_key_that_is_made_of_what_is_given_is_no_fixed_one(said):
  def drawn(number, x):
    def step(_, x):
      return x + jax.random.normal(jax.random.fold_in(KEY, number), x.shape)

    return jax.lax.fori_loop(0, 3, step, x)

  def fixed(number, x):
    return x + jax.jit(lambda k: jax.random.uniform(k))(jax.random.key(1))

  for function, word in ((drawn, ''), (fixed, OWN_KEY)):
    own_functions.check_draws('it', function, jnp.int32(0), jnp.ones(3))
    assert word in said.text
    assert bool(word) == bool(said.text)


def own_method(local, **options):
  """FedAvg by hand, with one of the faults that `options` ask for."""
  of_round, noise = options.get('of_round', True), options.get('noise')

  def step(params, data, cohort, key):
    cohort = fj.everyone(data, cohort.round if of_round else None)
    starts = fj.ClientModels(shared=params)
    trained = fj.train_cohort(local, starts, data, cohort, key)
    weights = trained.weights('uniform')

    def mean(p):
      return jnp.tensordot(weights / weights.sum(), p, axes=1)[None]

    params = jax.tree.map(mean, trained.params)
    return params if noise is None else noise(params), trained.info()

  def init(key, data):
    return fj.tree.repeat(local.model.init(key), options.get('models', 1))

  def deployed(params, data):
    return fj.ClientModels(shared=params, choice=options.get('choice'))

  return fj.Algorithm(local, init, step, deployed)


def run(algorithm, data):
  return fj.simulate(
    algorithm, data, data, rounds=2, eval_every=0, finetune_epochs=0,
    callbacks=[fj.callbacks.Progress(False)],
  )  # fmt: skip


def test_a_schedule_is_not_left_out_where_a_method_makes_its_cohorts():
  data, local = data_and_local()
  slow = local._replace(lr_schedule=lambda round: 1.0 / (1 + round))
  with pytest.raises(fj.UserError, match='`lr_schedule` needs the number of the round'):
    run(own_method(slow, of_round=False), data)
  fast, own = (run(own_method(each), data).state for each in (local, slow))
  shipped = run(fj.algorithms.fed_avg(slow, weighting='uniform'), data).state.params
  for a, b, c in zip(*map(jax.tree.leaves, (own, shipped, fast)), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)
    assert not np.allclose(a, c, atol=1e-4)


def test_numbers_of_the_host_in_a_method_are_told(said):
  data, local = data_and_local()

  for draw in (np.random.normal, GENERATOR.normal):
    warn_once.cache_clear()
    said.clear()

    def noise(params, draw=draw):
      return jax.tree.map(lambda p: p + draw(), params)

    run(own_method(local, noise=noise), data)
    assert '`step` of the method draws numbers on the host' in said.text
  assert '`init` of the method' not in said.text
  method = own_method(local)

  def init(key, data):
    return jax.tree.map(lambda p: p + GENERATOR.normal(), method.init(key, data))

  run(method._replace(init=init), data)
  assert '`init` of the method draws numbers on the host' in said.text


def test_rounds_that_draw_alike_whatever_their_key_are_told(said):
  data, local = data_and_local()
  method = own_method(local._replace(schedule=fj.Schedule(2)))

  def with_key(own_key):
    def step(params, data, cohort, key):
      return method.step(params, data, cohort, own_key(cohort, key))

    return method._replace(step=step)

  for own_key, told in (
    (lambda cohort, key: jax.random.key(0), True),
    (lambda cohort, key: jax.random.fold_in(jax.random.key(0), cohort.round), False),
    (lambda cohort, key: jax.random.fold_in(key, 1), False),
  ):
    warn_once.cache_clear()
    said.clear()
    run(with_key(own_key), data)
    assert ('do not depend on the key of the round' in said.text) == told


def test_means_of_models_that_do_not_ask_who_takes_part_are_told(said):
  data, local = data_and_local()
  dropping = local._replace(dropout_rate=0.5)

  def method(local, weights_of, own=False, mixed=False):
    def step(params, data, cohort, key):
      params = params[0] if own else params
      starts = fj.ClientModels(own=params) if own else fj.ClientModels(shared=params)
      trained = fj.train_cohort(local, starts, data, cohort, key)
      weights = weights_of(trained, data)
      if own:  # Each client keeps its model, which needs no weight.
        kept = fj.tree.with_rows(params, cohort, trained.params)
        means = jax.tree.map(lambda p: p.mean(axis=0), kept)
        return (kept, means if mixed else ()), trained.info()
      mean = jax.tree.map(
        lambda p: jnp.tensordot(weights / weights.sum(), p, axes=1)[None],
        trained.params,
      )
      return mean, trained.info()

    def init(key, data):
      start = local.model.init(key)
      params = fj.tree.repeat(start, data.num_clients if own else 1)
      return (params, start if mixed else ()) if own else params

    def deployed(params, data):
      params = params[0] if own else params
      return fj.ClientModels(**{'own' if own else 'shared': params})

    return fj.Algorithm(local, init, step, deployed)

  def alike(trained, data):
    return jnp.ones(trained.ids.shape)

  def by_sizes(trained, data):
    return data.sizes(trained.ids)

  for each, told in (
    (method(local, alike), True),
    (method(local, alike, own=True), False),
    (method(local, alike, own=True, mixed=True), False),
    (method(local, lambda trained, _: trained.sizes), False),
    (method(local, by_sizes), False),
    (method(dropping, by_sizes), True),
    (method(dropping, lambda trained, _: trained.weights('by_examples')), False),
  ):
    warn_once.cache_clear()
    said.clear()
    run(each, data)
    assert ('together whoever took part' in said.text) == told


def test_epsilon_of_a_method_that_trains_others_than_those_drawn_is_told(said):
  pytest.importorskip('dp_accounting')
  data, local = data_and_local()
  sends = fj.differential_privacy(1.0, 1.0)
  method = fj.algorithms.fed_avg(local._replace(sends=sends), weighting='uniform')

  def of_all(state, data, cohort, key):
    return method.step(state, data, fj.everyone(data, cohort.round), key)

  drawn = fj.cohort_of(np.array([1]), data, local.mesh, jnp.int32(0))
  start = jax.eval_shape(method.init, KEY, data)

  def trace(step):
    made = rounds._drawn_only(method._replace(step=step))
    jax.eval_shape(lambda state: made(state, data, drawn, KEY), start)

  for step, told in ((method.step, False), (of_all, True)):
    trace(step)
    assert ('`dp=server`: the method trains clients of' in said.text) == told

  def twice(state, data, cohort, key):
    state, _ = method.step(state, data, cohort, key)
    return method.step(state, data, cohort, key)

  assert 'times in a round' not in said.text
  trace(twice)
  assert 'the method trains clients 2 times in a round' in said.text


def test_what_functions_read_is_read_anew_by_each_run():
  """Variables of users' functions are constants of a trace that JAX keeps."""
  data, local = data_and_local()
  read = {'scale': 1.0}

  def scaled(outputs, y):
    return read['scale'] * local.model.task.loss(outputs, y)

  scaling = local._replace(model=local.model._replace(loss=scaled))
  method = fj.algorithms.fed_avg(scaling)
  mine = own_method(local)

  def step(state, data, cohort, key):
    return jax.tree.map(lambda p: p * read['scale'], state), mine.step(
      state, data, cohort, key
    )[1]

  own = mine._replace(step=step)

  def states(method):
    return [
      np.asarray(x) for x in jax.tree.leaves(run(method, data).state)
    ]  # fmt: skip

  before = states(method), states(own)
  read['scale'] = 3.0
  after = states(method), states(own)
  for old, new in zip(before, after, strict=True):
    assert not all(map(np.array_equal, old, new))


class Raises(fj.Callback):
  """Sets a value that a function reads, after the first round."""

  def __init__(self, read):
    self.read = read

  def on_round(self, event):
    self.read['scale'] = 3.0


def test_what_a_callback_changes_in_compiled_rounds_is_told(said):
  data, local = data_and_local()
  read, kept = {'scale': 1.0}, {'scale': 1.0}

  @jax.jit
  def scaled(outputs, y):
    return read['scale'] * local.model.task.loss(outputs, y)

  model = local.model._replace(loss=scaled)
  method = fj.algorithms.fed_avg(local._replace(model=model))
  for changed, told in ((kept, False), (read, True)):
    fj.simulate(
      method, data, data, rounds=2, callbacks=[Raises(changed)], finetune_epochs=0
    )
    assert ('`scale`, which functions of the method or its' in said.text) == told

  class Decaying:
    scale = 1.0

    def __init__(self, factor):
      self.factor, self.kept = factor, []

    def between(self, state, info):
      self.scale *= self.factor
      self.kept.append(info.train_loss)  # Which `step` does not read.
      return state, info

    def step(self, state, data, cohort, key):
      state, info = mine.step(state, data, cohort, key)
      return jax.tree.map(lambda p: p * self.scale, state), info

  mine = own_method(local)
  for factor, told in ((1.0, False), (0.9, True)):
    own = Decaying(factor)
    warn_once.cache_clear()
    said.clear()
    run(mine._replace(step=own.step, between=own.between), data)
    assert ('`kept`, `scale`, which functions of the method or' in said.text) == told
    assert ('which functions of the method' in said.text) == told


def test_models_of_which_clients_choose_none_are_refused():
  data, local = data_and_local()
  with pytest.raises(fj.UserError, match='2 models and no `choice`'):
    run(own_method(local, models=2), data)
  with pytest.raises(fj.UserError, match='`choice` of int32 and shape'):
    run(own_method(local, choice=jnp.zeros(1, jnp.int32)), data)


def test_what_replaces_the_optimizer_is_checked():
  data, local = data_and_local()
  for optimizer, words in (
    (optax.scale_by_adam(), 'upwards'),
    (0.1, 'must be one of Optax'),
  ):
    algorithm = fj.algorithms.fed_avg(local._replace(optimizer=optimizer))
    with pytest.raises(fj.UserError, match=words):
      run(algorithm, data)
  with pytest.raises(fj.UserError, match='`sends` is a function'):
    run(fj.algorithms.fed_avg(local._replace(sends=lambda k, s, w: w)), data)


def test_examples_that_depend_on_their_batch_are_refused_or_told(said):
  data, local = data_and_local()
  plain = local.model

  def apply(params, x):
    return plain.apply(params, x - x.mean(axis=0, keepdims=True))

  model = fj.Model(plain.init, apply)
  with pytest.raises(fj.UserError, match='`apply` of the model lets the examples'):
    own_functions.check(local._replace(model=model), data)

  def balanced(outputs, y):
    return plain.loss(outputs, y) / jnp.zeros(3).at[y].add(1.0)[y]

  class Own:
    def loss(self, outputs, y):
      return balanced(outputs, y)

    def apply(self, params, x):
      return apply(params, x)

  model = plain._replace(apply=Own().apply)
  with pytest.raises(fj.UserError, match='`apply` of the model lets the examples'):
    own_functions.check(local._replace(model=model), data)
  for loss in (loss_of(lambda outputs: 0.0), Own().loss):
    assert not said.text
    own_functions.check(local._replace(model=plain._replace(loss=loss)), data)
  assert '`loss` of the model is of whole batches' in said.text


def test_starts_that_no_key_changes_and_losses_that_are_not_finite_are_told(said):
  data, local = data_and_local()
  plain = local.model
  start = plain.init(jax.random.key(0))

  def apply(params, x):
    return plain.apply(params, x)

  own_functions.check(local._replace(model=fj.Model(plain.init, apply)), data)
  assert not said.text
  own_functions.check(local._replace(model=fj.Model(lambda key: start, apply)), data)
  assert '`init` of the model gives the same parameters for every key' in said.text

  def broken(params, x):  # For examples of the test split.
    outputs = plain.apply(params, x)
    return jnp.where(x[:, :1] > 99, jnp.nan, outputs)

  test = fj.FederatedData.from_arrays(
    data.x + 100, data.y, [6, 5], num_classes=3, info=data.info
  )
  method = fj.algorithms.fed_avg(local._replace(model=fj.Model(plain.init, broken)))
  fj.simulate(
    method, data, test, rounds=1, eval_every=0, finetune_epochs=0,
    callbacks=[fj.callbacks.Progress(False)],
  )  # fmt: skip
  assert 'The loss on the test examples is not finite' in said.text


class TwoLayers(nn.Module):
  between: object

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.Dense(2, name='hidden')(x.reshape(x.shape[0], -1))
    x = nn.BatchNorm(use_running_average=not train, name='norm')(x)
    return nn.Dense(3, name='logits')(self.between(x))


@pytest.mark.parametrize(('between', 'loss', 'told'), [
    (nn.relu, None, ''),
    (jnp.round, None, 'reaches hidden/bias, hidden/kernel, norm/bias and 1 more of'),
    (lambda x: (x > 0).astype(jnp.float32), None, 'reaches hidden/bias'),
    (jnp.zeros_like, None, 'reaches hidden/bias'),
    (nn.relu, lambda o, y: (o.argmax(-1) != y).astype(jnp.float32), 'and 3 more of'),
])  # fmt: skip
def test_parameters_that_no_gradient_reaches_are_told(between, loss, told, said):
  data, local = data_and_local()
  model = fj.models.from_flax(TwoLayers(between), data.example_shape, loss=loss)
  own_functions.check(local._replace(model=model), data)
  assert told in said.text
  assert bool(told) == ('No gradient of the loss' in said.text)


@pytest.mark.parametrize(('augmentation', 'message'), [
    (lambda key, x: x[::-1], 'influence each other'),
    (lambda key, x: jax.random.permutation(key, x), 'influence each other'),
    (lambda key, x: (x + x.mean(axis=0, keepdims=True)) / 2, 'influence each other'),
    (lambda key, x: x.astype(jnp.int32), 'gives int32 of shape'),
    (lambda key, x: x[:, 1:], 'it must keep both'),
    (lambda key, x: jax.random.uniform(key, x.shape[:1])[:, None] * x, ''),
])  # fmt: skip
def test_each_example_is_augmented_on_its_own(augmentation, message):
  data, local = data_and_local()
  local = local._replace(augmentation=augmentation)
  refused = pytest.raises(fj.UserError, match=message or None)
  with refused if message else contextlib.nullcontext():
    own_functions.check(local, data)


def test_learning_rates_in_place_of_factors_are_told(said):
  for schedule, told in ((optax.exponential_decay(0.1, 1, 0.9), True), (None, False)):
    schedule = schedule or optax.cosine_decay_schedule(1.0, 3)
    said.clear()
    checks._check_rates('lr_schedule', schedule, 3)
    assert ('`lr_schedule` is at most 0.1: its factors' in said.text) == told


def test_what_has_no_effect_on_training_is_told(said):
  data, local = data_and_local()
  by_steps = local._replace(schedule=fj.Schedule(2, epochs=3, steps=5))
  sends = fj.Sends(lambda key, start, w: w, named='compression')
  work = fj.ClientWork(rates=[1.0, 2.0, 3.0])
  methods = fj.algorithms
  for method, words in (
    (methods.fed_sgd(by_steps), 'One gradient step a round'),
    (methods.non_fed(local._replace(sends=sends)), '`compression` has no effect'),
    (methods.fed_avg(by_steps), '`epochs=3` has no effect: `steps=5`'),
    (methods.fed_avg(local._replace(work=work)), '`ClientWork` is of 3 clients, but'),
  ):
    spec = Spec(algorithm=method, train=data, test=data, rounds=1)
    checks.check(spec, shared())
    assert words in said.text


def test_clients_given_twice_or_on_both_sides_are_refused():
  data, local = data_and_local()
  with pytest.raises(fj.UserError, match='client 1 twice'):
    fj.cohort_of([0, 1, 1], data, local.mesh)
  with pytest.raises(fj.UserError, match='Client c1 of'):
    checks._check_unseen(data, data.reorder(np.array([1])))
  checks._check_unseen(data, helpers.federation([6, 5], seed=1))


def test_models_that_are_deployed_without_a_choice_are_refused():
  data, local = data_and_local()

  def deployed(state, data):
    return fj.ClientModels(jax.tree.map(lambda p: jnp.repeat(p, 2, 0), state.params))

  method = fj.algorithms.fed_avg(local)._replace(deployed=deployed)
  with pytest.raises(fj.UserError, match='`deployed` of the method gives 2 models'):
    run(method, data)


def test_clients_that_take_part_are_not_measured_as_unseen():
  data, local = data_and_local()
  unseen = fj.callbacks.Unseen(*2 * (data.reorder(np.array([1])),))
  with pytest.raises(fj.UserError, match='Client c1 of `callbacks'):
    fj.simulate(fj.algorithms.fed_avg(local), data, data, rounds=1, callbacks=[unseen])
