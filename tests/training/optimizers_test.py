"""Local optimizers against PyTorch's update rules, written in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.algorithms.common.pulled import train_pulled
from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.training import shared_kernels
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.optimizers import clip_by_norm, local_optimizer
from fesem_jax.training.trained import Reduction
from tests.support import helpers, reference
from tests.support.methods import assert_close, federation, initial, run, unflatten
from tests.support.nights import rest_by_night

SIZES = [6, 3, 9]
KEY = jax.random.key(3)
RATE = 0.05


def trained(local, data, penalty=None):
  """The cohort's models after local training from one model, and that model."""
  start = tree.expand(jax.jit(local.model.init)(jax.random.key(0)))
  compiled = jax.jit(
    lambda p, d: train_cohort(
      local, ClientModels(p), d, helpers.everyone(d), KEY, penalty=penalty
    )
  )
  return reference.from_params(start, 0), compiled(start, data).params


def torch_training(model, batches, optimizer, rates=None, penalty=0.0, **options):
  """The training loop of a PyTorch program with a penalty |w - start|^2 in its loss.

  By the documentation of torch.optim.SGD, Adam, AdamW and clip_grad_norm_.
  """
  decay, clip = options.get('weight_decay', 0.0), options.get('clip_norm', 0.0)
  w = start = reference.flat(model)
  buffer, m, v = None, 0.0, 0.0
  for t, (x, y) in enumerate(batches, 1):
    lr = RATE * (1.0 if rates is None else rates[t - 1])
    _, gradient = reference.loss_and_gradient(unflatten(w, model), x, y)
    g = reference.flat(gradient) + 2 * penalty * (w - start)
    if clip:
      g = g * min(1.0, clip / (np.linalg.norm(g) + 1e-6))
    if optimizer == 'adamw':
      w = w - lr * decay * w
    elif decay:
      g = g + decay * w
    if optimizer.startswith('adam'):
      m = 0.9 * m + 0.1 * g
      v = 0.999 * v + 0.001 * g**2
      w = w - lr * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
      continue
    if optimizer == 'momentum' and options.get('momentum', 0.9):
      momentum = options.get('momentum', 0.9)
      buffer = g if buffer is None else momentum * buffer + g
      g = buffer
    w = w - lr * g
  return w


@pytest.mark.parametrize(
  ('optimizer', 'options', 'penalty'),
  rest_by_night(
    [
      ('sgd', {'weight_decay': 0.3}, None),
      ('sgd', {'clip_norm': 0.4}, 0.5),
      ('momentum', {}, None),
      ('momentum', {'momentum': 0.0}, None),
      ('momentum', {'momentum': 0.7, 'weight_decay': 0.3}, None),
      ('adam', {'weight_decay': 0.3, 'clip_norm': 0.2}, 0.5),
      ('adamw', {'weight_decay': 0.5, 'clip_norm': 0.2}, None),
    ],
    by_day=5,
  ),
)
def test_steps_are_those_of_pytorch(optimizer, options, penalty):
  data = helpers.federation(SIZES)
  made = local_optimizer(optimizer, RATE, **options)
  local = helpers.local(epochs=3, optimizer=made)
  start, got = trained(local, data, penalty)
  for i in range(len(SIZES)):
    batches = helpers.batches(data, local.schedule, i, KEY)
    want = torch_training(start, batches, optimizer, penalty=penalty or 0.0, **options)
    assert_close(reference.flat(reference.from_params(got, i)), want, rtol=1e-3)


def test_a_clipped_gradient_is_as_long_as_the_bound_over_all_parameters():
  gradients = {'a': np.array([3.0, 0.0]), 'b': np.array([[4.0]])}
  clip = clip_by_norm(1.0)
  short, _ = clip.update(gradients, clip.init(gradients))
  np.testing.assert_allclose(short['a'], [0.6, 0.0], rtol=1e-5)
  np.testing.assert_allclose(short['b'], [[0.8]], rtol=1e-5)
  assert clip.update({'a': np.array([0.3])}, ())[0]['a'] == np.float32(0.3)
  assert not np.isfinite(clip.update({'a': np.array([np.inf])}, ())[0]['a']).any()
  # PyTorch adds 1e-6 to the norm.
  tiny = clip_by_norm(1e-6).update({'a': np.array([1e-6])}, ())[0]['a']
  np.testing.assert_allclose(tiny, [0.5e-6], rtol=1e-5)


def listed(step):
  """1, 1/2, 1/4, ... over local steps."""
  return 0.5**step


@pytest.mark.parametrize('shared_start', ['off', 'on'])
@pytest.mark.parametrize('optimizer', rest_by_night(['sgd', 'momentum']))
def test_the_rate_of_a_local_step_is_that_of_its_number(optimizer, shared_start):
  data = helpers.federation(SIZES)
  local = helpers.local(epochs=2, optimizer=local_optimizer(optimizer, RATE))
  local = local._replace(local_lr_schedule=listed, shared_start=shared_start)
  params = ClientModels(tree.expand(helpers.first_model(local)))
  # Where starts are shared, steps of another length stay exact.
  kernels = shared_kernels.kernels(local, params, data)
  assert bool(kernels) == (optimizer == 'sgd' and shared_start == 'on')
  start, got = trained(local, data)
  rates = [listed(step) for step in range(12)]
  for i in range(len(SIZES)):
    batches = helpers.batches(data, local.schedule, i, KEY)
    want = torch_training(start, batches, optimizer, rates)
    assert_close(reference.flat(reference.from_params(got, i)), want, rtol=1e-3)


def test_control_variates_are_means_over_steps_of_their_lengths():
  data, rate = federation(), 0.1
  local = helpers.local(epochs=2)._replace(local_lr_schedule=listed)
  algorithm = algorithms.build('scaffold', local)
  model = reference.from_params(initial(algorithm, data).params, 0)
  state, _ = run(algorithm, data, rounds=1)
  key, x = jax.random.fold_in(jax.random.key(9), 1), reference.flat(model)
  for i in (1, 2):
    w = x
    batches = helpers.batches(data, local.schedule, i, key)
    gradients, lengths = [], [listed(t) for t in range(len(batches))]
    for length, batch in zip(lengths, batches, strict=True):
      _, gradient = reference.loss_and_gradient(unflatten(w, model), *batch)
      gradients.append(reference.flat(gradient))
      w = w - rate * length * gradients[-1]
    got = reference.flat(reference.from_params(state.client_controls, i))
    assert_close(got, np.average(gradients, axis=0, weights=lengths), rtol=1e-3)


def test_a_penalty_and_a_correction_are_clipped_too():
  # Not only the loss: with a bound of 0.01 no step is longer, however far the anchor.
  data = helpers.federation(SIZES)
  local = helpers.local(steps=1, optimizer=local_optimizer('sgd', 1.0, clip_norm=0.01))
  start = tree.expand(helpers.first_model(local))
  far = jax.tree.map(lambda x: x + 10.0, start)
  pull = tree.repeat(tree.unstack(far, 0), len(SIZES)), jnp.ones(len(SIZES))
  once = jax.jit(
    lambda p, d: train_pulled(
      local, ClientModels(p), d, helpers.everyone(d), KEY, Reduction(), pull
    )
  )
  moved = tree.row_distances(once(start, data).params, start)
  np.testing.assert_allclose(np.sqrt(moved), 0.01, rtol=1e-3)
