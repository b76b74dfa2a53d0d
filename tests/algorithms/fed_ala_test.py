"""FedALA against the equations of Zhang et al. in float64, and its limits."""

import dataclasses

import jax
import numpy as np

from fesem_jax import algorithms
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import Attack
from fesem_jax.data import attacks
from fesem_jax.training.privacy import differential_privacy
from tests.support import helpers, reference
from tests.support.methods import (
  assert_close,
  federation,
  initial,
  matrix,
  run,
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
