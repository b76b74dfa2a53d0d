"""FedALA against the equations of Zhang et al. in float64, and its limits."""

import dataclasses

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import Attack
from fesem_jax.data import attacks
from fesem_jax.training.privacy import differential_privacy
from tests.support import helpers, reference
from tests.support.averaged import averaged_rounds
from tests.support.methods import (
  SIZES,
  assert_close,
  federation,
  initial,
  matrix,
  run,
  run_cohorts,
  unflatten,
)

START_EPOCHS, SAMPLE, RATE = 10, 0.8, 20.0
OPTIONS = {'ala_rate': RATE}


def mixed(w, head, weights):
  """The reference model w with h + (g - h) * A as its last layer."""
  last = [h + (g - h) * a for g, h, a in zip(w[-1], head, weights, strict=True)]
  return [*w[:-1], tuple(last)]


def learned(w, head, weights, batches, per_epoch, rate=RATE):
  """A_i after the batches that are sampled of each epoch."""
  most = int(np.ceil(SAMPLE * per_epoch))
  for number, (x, y) in enumerate(batches):
    if number % per_epoch >= most:
      continue
    slope = reference.loss_and_gradient(mixed(w, head, weights), x, y)[1][-1]
    weights = [
      np.clip(a - rate * (g - h) * s, 0, 1)
      for a, g, h, s in zip(weights, w[-1], head, slope, strict=True)
    ]
  return weights


@pytest.mark.parametrize(
  ('cohorts', 'steps', 'devices'),
  [([range(6)] * 4, 0, 2), ([(0, 3), (3, 4), (1, 0), (0, 3)], 4, 1)],
)
def test_matches_float64_reference(cohorts, steps, devices):
  # Weights are learned in epochs even where models are trained in steps.
  data = federation()
  local = helpers.local(batch_size=2, epochs=2, steps=steps, devices=devices)
  algorithm = algorithms.build('fed_ala', local, **OPTIONS)
  like = w = reference.from_params(initial(algorithm, data).params, 0)
  heads, weights = [w[-1]] * 6, [[np.ones_like(part) for part in w[-1]]] * 6
  first, more = reference.flat(w), {}  # And the steps of learning weights.

  def train(i, x, batches):
    per_epoch, w = -(-SIZES[i] // 2), unflatten(x, like)
    if x is not first:  # From the second round on.
      of_weights = batches(epochs=1 if i in more else START_EPOCHS, steps=0)
      weights[i] = learned(w, heads[i], weights[i], of_weights, per_epoch)
      most = int(np.ceil(SAMPLE * per_epoch))
      more[i] = sum(n % per_epoch < most for n in range(len(of_weights)))
    model, loss = reference.local_sgd(mixed(w, heads[i], weights[i]), batches(), 0.1)
    heads[i] = model[-1]
    return reference.flat(model), loss

  x, loss, steps = averaged_rounds(local, data, first, cohorts, train)
  w = unflatten(x, like)
  state, infos = run_cohorts(algorithm, data, cohorts)
  assert_close(reference.vectors(state.params)[0], reference.flat(w), rtol=1e-3)
  found = matrix(state.head_weights)
  want = [np.concatenate([a[1], a[0].ravel()]) for a in weights]  # Bias, then kernel.
  assert_close(found, np.stack(want), rtol=1e-3, atol=1e-4)
  assert 0 <= found.min() < 0.9
  assert found.max() == 1
  models = [reference.flat(mixed(w, *own)) for own in zip(heads, weights, strict=True)]
  used = algorithm.deployed(state, data).params(6)
  assert_close(reference.vectors(used), np.stack(models), rtol=1e-3)
  assert_close(infos[-1].train_loss, loss)
  assert int(infos[-1].steps) == steps + sum(more[i] for i in cohorts[-1])


def test_bad_clients_keep_the_heads_that_they_trained():
  honest = federation()
  bad = Attack(np.ones(6, bool), (attacks.Replacement(),))
  lying = dataclasses.replace(honest, attack=bad)
  algorithm = algorithms.build('fed_ala', helpers.local())
  x = matrix(initial(algorithm, honest).params)
  a, b = (run(algorithm, data, rounds=1)[0] for data in (honest, lying))
  assert_close(matrix(b.heads), matrix(a.heads), rtol=1e-6, atol=1e-7)
  assert_close(matrix(b.params) - x, x - matrix(a.params))


def test_what_is_sent_is_about_the_model_of_the_server():
  """Clipping holds, though clients start from heads of their own."""
  data, clip = federation(), 1e-3
  algorithm = algorithms.build('fed_ala', helpers.local(rate=0.5), **OPTIONS)
  before, _ = run(algorithm, data, rounds=3)
  sends = differential_privacy(clip, 0.0, where='client', delta=0)
  private = algorithms.build(
    'fed_ala', helpers.local()._replace(sends=sends), **OPTIONS
  )
  key = jax.random.key(7)
  after, _ = jax.jit(private.step)(before, data, helpers.everyone(data), key)
  moved = np.linalg.norm(matrix(after.params) - matrix(before.params))
  assert 0 < moved < 1.01 * clip


def test_a_bad_client_of_one_batch_learns_its_own_weights_in_every_epoch():
  # Weights never leave the client, so that it has nothing to lie about.
  honest, local = helpers.federation([2, 5]), helpers.local(batch_size=2, hidden=(3,))
  bad = Attack(np.ones(2, bool), (attacks.Noise(),))
  data = dataclasses.replace(honest, attack=bad)
  algorithm = algorithms.build('fed_ala', local, ala_rate=2.0)
  state, key = initial(algorithm, data), jax.random.key(7)
  heads = jax.tree.map(lambda h: 0.5 * h + 0.1, state.heads)
  before = state._replace(heads=heads, rounds=np.int32(1))
  after, _ = jax.jit(algorithm.step)(before, data, helpers.everyone(data), key)
  w, longer = reference.from_params(before.params, 0), Schedule(2, epochs=START_EPOCHS)
  head = [np.asarray(before.heads['logits'][name][0]) for name in ('kernel', 'bias')]
  ones = [np.ones_like(part) for part in head]
  batches = helpers.batches(data, longer, 0, key)
  kernel, bias = learned(w, head, ones, batches, per_epoch=1, rate=2.0)
  found = after.head_weights['logits']
  assert ((kernel > 0) & (kernel < 0.99)).any()
  assert_close(found['kernel'][0], kernel, rtol=1e-3)
  assert_close(found['bias'][0], bias, rtol=1e-3)
