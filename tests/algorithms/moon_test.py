"""MOON against Li et al.'s Algorithm 1 in float64, and its limits."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from fesem_jax import algorithms, models
from fesem_jax.core.federated_data import Attack
from fesem_jax.data import attacks
from fesem_jax.utils.errors import UserError
from tests.support import helpers, reference
from tests.support.averaged import averaged_rounds
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  run_cohorts,
  unflatten,
)
from tests.support.nights import rest_by_night

MU, TEMPERATURE = 2.0, 0.4


def hidden(model, x):
  """[B, F] what the last layer gets, and its lengths [B, 1]; 1 of zeros."""
  kernel, bias = model[0]
  z = np.maximum(x @ kernel + bias, 0)
  length = np.linalg.norm(z, axis=1, keepdims=True)
  return z, np.where(length > 0, length, 1)


def contrast(model, sent, last, x):
  """Mean of -log(p / (p + q)) over a batch, and its gradient by the first layer."""
  z, length = hidden(model, x)
  unit, like, unlike = (a / b for a, b in (hidden(m, x) for m in (model, sent, last)))
  to_sent, to_last = ((unit * u).sum(axis=1, keepdims=True) for u in (like, unlike))
  p, q = np.exp(to_sent / TEMPERATURE), np.exp(to_last / TEMPERATURE)
  # The gradient of the cosine of z and u is (u - cos u_z) / |z|.
  toward = (unlike - to_last * unit) - (like - to_sent * unit)
  delta = q / (p + q) / TEMPERATURE * toward / length * (z > 0) / len(x)
  return -np.log(p / (p + q)).mean(), [(x.T @ delta, delta.sum(axis=0))]


def local_training(x, last, like, batches):
  """w_i after a client's batches, and the mean of all that it minimizes."""
  w, losses = x, []
  for batch in batches:
    w_model, sent, old = (unflatten(v, like) for v in (w, x, last))
    loss, gradient = reference.loss_and_gradient(w_model, *batch)
    more, of_first = contrast(w_model, sent, old, batch[0].astype(np.float64))
    losses.append(loss + MU * more)
    gradient = reference.flat(gradient)
    first = reference.flat(of_first)
    gradient[: first.size] += MU * first
    w = w - 0.1 * gradient
  return w, np.average(losses, weights=[len(y) for _, y in batches])


@pytest.mark.parametrize(
  ('cohorts', 'devices'),
  rest_by_night([([range(6)] * 3, 2), ([(0, 3), (3, 4), (1, 0)], 1)]),
)
def test_matches_float64_reference(cohorts, devices):
  data = federation()
  local = helpers.local(epochs=2, devices=devices, hidden=(8,))
  algorithm = algorithms.build('moon', local, moon_mu=MU, moon_temperature=TEMPERATURE)
  like = reference.from_params(initial(algorithm, data).params, 0)
  x = reference.flat(like)
  last = [x] * len(SIZES)

  def train(i, x, batches):
    last[i], loss = local_training(x, last[i], like, batches())
    return last[i], loss

  x, loss, _ = averaged_rounds(local, data, x, cohorts, train)

  state, infos = run_cohorts(algorithm, data, cohorts)
  assert_close(reference.vectors(state.params)[0], x, rtol=1e-3)
  assert_close(reference.vectors(state.client_params), np.stack(last), rtol=1e-3)
  assert_close(infos[-1].train_loss, loss)


def test_a_client_that_drops_out_keeps_its_last_model_and_bad_ones_the_true_one():
  honest, local = federation(), helpers.local()._replace(dropout_rate=0.5)
  bad = Attack(np.ones(6, bool), (attacks.Replacement(),))
  algorithm = algorithms.build('moon', local)
  first, step = initial(algorithm, honest), jax.jit(algorithm.step)
  everyone, keys = helpers.everyone(honest), jax.random.split(jax.random.key(5), 2)
  state, _ = step(first, honest, everyone, keys[0])
  later, info = step(state, honest, everyone, keys[1])
  changed = matrix(later.client_params) != matrix(state.client_params)
  assert changed.any(axis=1).sum() == int(info.trained)
  assert 0 < int(info.trained) < 6
  lying = dataclasses.replace(honest, attack=bad)
  lied, _ = step(first, lying, everyone, keys[0])
  assert_close(matrix(lied.client_params), matrix(state.client_params), 1e-6, 1e-7)
  x = matrix(first.params)
  assert_close(matrix(lied.params) - x, x - matrix(state.params))


def test_a_model_must_have_a_representation():
  model = models.from_flax(lambda rngs: Net(rngs), helpers.SHAPE)
  algorithm = algorithms.build('moon', helpers.local()._replace(model=model))
  with pytest.raises(UserError, match='logits'):
    algorithm.init(jax.random.key(0), federation())


class Net(nnx.Module):
  """Two dense layers, not of Linen."""

  def __init__(self, rngs):
    self.body = nnx.Linear(helpers.SHAPE[0], 4, rngs=rngs)
    self.logits = nnx.Linear(4, helpers.CLASSES, rngs=rngs)

  def __call__(self, x):
    return self.logits(nnx.relu(self.body(x)))
