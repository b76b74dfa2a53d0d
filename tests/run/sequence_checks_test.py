"""Models that are shown the tokens that they predict, and padding, are told of."""

import logging

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax.run import checks
from fesem_jax.run.programs import shared
from fesem_jax.run.spec import Spec
from fesem_jax.utils.notices import warn_once

TOKENS = np.random.default_rng(0).integers(1, 5, (40, 9))


class Net(nn.Module):
  padding: str

  @nn.compact
  def __call__(self, tokens):
    x = nn.Embed(5, 6)(tokens.astype(int))
    x = nn.Conv(6, (3,), padding=self.padding, name='conv')(x)
    mean = x.mean(axis=1, keepdims=True)  # As of attention whose mask leaves nothing.
    return nn.Dense(5, name='logits')(jnp.where(tokens[..., None] == 0, mean, x))


# The last tokens are padding.
SHORT = np.where(np.arange(9) < 5, TOKENS, 0)
OF_SHORT = np.where(SHORT[:, 1:] == 0, -1, SHORT[:, 1:])


def padded(y, token, count=20):
  y = y.copy()
  y[:count, -4:] = token
  return y


@pytest.mark.parametrize(('x', 'y', 'padding', 'told'), [
    (TOKENS[:, :-1], TOKENS[:, 1:], 'CAUSAL', ''),
    (TOKENS[:, :-1], TOKENS[:, 1:], 'SAME', 'outputs at a position depend on later'),
    (SHORT[:, :-1], OF_SHORT, 'CAUSAL', ''),
    # Targets of another kind, as of tagging, which may be of the whole sequence.
    (TOKENS[:, :-1], TOKENS[:, 1:] // 2, 'SAME', ''),
    (TOKENS[:, :-1], TOKENS[:, :-1], 'CAUSAL', 'tokens of x at the same positions'),
    (TOKENS[:, :-1], padded(TOKENS[:, 1:], 0), 'CAUSAL', 'sequences end with token 0'),
    (TOKENS[:, :-1], padded(TOKENS[:, 1:], -1), 'CAUSAL', ''),
    (np.zeros((40, 8), int), padded(np.zeros((40, 8), int), 0), 'CAUSAL', 'same pos'),
])  # fmt: skip
def test_tokens_that_are_shown_and_padding_are_told(x, y, padding, told, caplog):
  data = fj.FederatedData.from_arrays(
    x, y, [20, 20], task='sequence', num_classes=5, scale=1.0
  )
  model = fj.models.from_flax(Net(padding), (8,), task='sequence')
  method = fj.algorithms.fed_avg(fj.local_training(model, optax.sgd(0.1)))
  warn_once.cache_clear()
  with caplog.at_level(logging.WARNING):
    checks.check(Spec(algorithm=method, train=data, test=data, rounds=1), shared())
  assert told in caplog.text
  words = 'depend on later', 'same positions', 'sequences end with'
  assert bool(told) == any(word in caplog.text for word in words)
