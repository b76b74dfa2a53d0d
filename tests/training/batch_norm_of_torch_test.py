"""A local epoch of BatchNorm beside PyTorch 2.13's, whose numbers in float64 are below.

The network is Linear(6, 5), BatchNorm1d(5, momentum=0.2), ReLU, Linear(5, 3); it is
trained on 22 examples in batches of 8, 8 and 6 by SGD with rate 0.1, momentum 0.9 and
weight decay 0.01, of the start and the examples of `drawn`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fesem_jax as fj
from fesem_jax.core import tree
from fesem_jax.models import porting
from fesem_jax.training.cohort import train_cohort
from tests.support import batch_norm, helpers
from tests.support.nights import rest_by_night

MOMENTUM = batch_norm.MOMENTUM  # 0.8: Flax's is 1 minus PyTorch's.

# The state_dict after the three steps.
TRAINED = {
  '0.weight': [
    [0.3771708, 0.3380813, -0.3708907, -1.8774834, -0.1355458, -0.8144979],
    [1.0744408, -0.2876352, 0.0834775, -0.8442351, -0.5077377, -0.0106138],
    [-1.4704145, 0.2834491, -0.0979643, -1.183043, -2.386592, 0.5225863],
    [-0.311857, -0.523947, -0.2303032, 1.8056153, -0.0708065, 0.0634187],
    [-1.4879852, 1.6089489, 0.947457, 1.0642305, 0.0462791, 0.9099183],
  ],
  '0.bias': [0.3688676, 0.6097521, -0.1513399, -1.4656265, 1.0230874],
  '1.weight': [-1.8374188, -0.2694239, 0.1201475, -1.073126, 0.302408],
  '1.bias': [-0.2793256, -0.4183596, 0.6535683, -0.4243456, 0.9125381],
  '1.running_mean': [0.4456164, 0.4685479, 0.6622124, -1.1781443, 0.7794865],
  '1.running_var': [3.6878522, 2.0729943, 4.0337363, 2.670786, 3.7031525],
  '3.weight': [
    [0.1349894, -0.4718808, -2.0057608, -1.3062149, 0.7704684],
    [-0.0070946, -0.2817251, 1.5798357, -1.2911585, -0.5719971],
    [-0.2986688, 0.5834443, -0.5332169, -0.5884889, -1.2962598],
  ],
  '3.bias': [0.5612582, 0.767867, -0.2759498],
}
# running_var after each step, and outputs in evaluation of the first four examples.
VARIANCES = [
  [2.1399516, 1.308319, 2.2253572, 1.6171057, 1.9477014],
  [3.1671708, 1.8857987, 2.2100974, 2.5746098, 3.0701818],
  [3.6878522, 2.0729943, 4.0337363, 2.670786, 3.7031525],
]
OUTPUTS = [
  [0.0856339, 1.2206789, -2.1169565],
  [-2.6310925, -0.6894014, -2.3957859],
  [-0.4757548, 1.6223902, -2.1758232],
  [0.6800705, 0.9111877, -2.9426611],
]


def drawn():
  """The examples x, y in the order of the steps, and the state_dict of the start."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(22, 6)).astype(np.float32), rng.integers(0, 3, 22)
  shapes = {'0.weight': (5, 6), '0.bias': 5, '1.weight': 5, '1.bias': 5}
  shapes |= {'3.weight': (3, 5), '3.bias': 3}
  start = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
  start |= {'1.running_mean': np.zeros(5), '1.running_var': np.ones(5)}
  return x, y, start


def linen():
  return fj.models.from_flax(batch_norm.LinenNet(), (6,))


def of_nnx():
  return fj.models.from_flax(lambda rngs: batch_norm.NnxNet(6, rngs=rngs), (6,))


def biased():
  """running_var [5] as Flax has it: of variances of a batch that are divided by n."""
  held, before = np.ones(5), np.ones(5)
  for after, n in zip(np.array(VARIANCES), (8, 8, 6), strict=True):
    unbiased = (after - MOMENTUM * before) / (1 - MOMENTUM)
    held = MOMENTUM * held + (1 - MOMENTUM) * unbiased * (n - 1) / n
    before = after
  return held


@pytest.mark.parametrize('make', rest_by_night([linen, of_nnx]))
def test_a_local_epoch_is_that_of_pytorch(make):
  model, (x, y, start) = make(), drawn()
  optimizer = optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1, momentum=0.9))
  local = helpers.local(8, chunk=1, optimizer=optimizer)._replace(model=model)
  key, rows = jax.random.key(5), np.zeros((22, 6), np.float32)
  rows[:, 0] = np.arange(22)
  numbered = fj.FederatedData.from_arrays(rows, y, [22], num_classes=3)
  batches = helpers.batches(numbered, local.schedule, 0, key)
  order = np.concatenate([batch[:, 0] for batch, _ in batches]).astype(int)
  inverse = np.argsort(order)  # So that the steps take the examples as PyTorch did.
  data = fj.FederatedData.from_arrays(x[inverse], y[inverse], [22], num_classes=3)
  params = jax.tree.map(jnp.asarray, porting.from_state_dict(model, start))
  starts = fj.ClientModels(shared=tree.expand(params))
  trained = train_cohort(local, starts, data, fj.everyone(data), key)
  found = tree.unstack(trained.params, 0)
  state = {name: np.array(value) for name, value in TRAINED.items()}
  want = porting.from_state_dict(model, state | {'1.running_var': biased()})
  for layer, parts in want.items():
    for name, value in parts.items():
      np.testing.assert_allclose(found[layer][name], value, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize('make', [linen, of_nnx])
def test_outputs_in_evaluation_are_those_of_pytorch(make):
  model, (x, _, _) = make(), drawn()
  state = {name: np.array(value) for name, value in TRAINED.items()}
  params = porting.from_state_dict(model, state)
  found = model.apply(params, jnp.asarray(x[:4]))
  np.testing.assert_allclose(found, OUTPUTS, rtol=1e-5, atol=2e-6)
