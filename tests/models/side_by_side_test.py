"""Clients that train side by side come to what they come to one at a time."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.models import networks
from fesem_jax.models.lenet import Lenet
from fesem_jax.models.recurrent import Recurrent
from fesem_jax.models.resnet import ResNet
from fesem_jax.models.transformer import Transformer
from tests.support import helpers
from tests.support.methods import run

TOKENS = (5,)
MODELS = {
  'resnet': (ResNet((1, 1), (4, 8), 3, False), (6, 6, 2)),
  'lenet': (Lenet(3), (12, 12)),
  'lstm': (Recurrent('lstm', 3, embedding=2, width=4, depth=1), TOKENS),
  'transformer': (Transformer(3, width=4, depth=1, heads=2), TOKENS),
}
SIZES = [5, 3, 6]


@pytest.mark.slow
# By day one of images and one of tokens; conv_test.py and sequences_test.py have the
# layers of the others side by side.
@pytest.mark.parametrize('name', [
  pytest.param('resnet', marks=pytest.mark.nightly), 'lenet', 'lstm',
  pytest.param('transformer', marks=pytest.mark.nightly),
])  # fmt: skip
def test_chunks_change_rounding_only(name):
  module, shape = MODELS[name]
  rng = np.random.default_rng(0)
  x = rng.normal(size=(sum(SIZES), *shape)).astype(np.float32)
  if shape == TOKENS:
    x = rng.integers(0, 3, (sum(SIZES), *shape)).astype(np.float32)
  data = FederatedData.from_arrays(x, rng.integers(0, 3, len(x)), SIZES, num_classes=3)
  model = networks.as_model(module, shape)
  ends = []
  for chunk in (1, 3):
    local = helpers.local(rate=0.05, chunk=chunk)._replace(model=model)
    state, _ = run(algorithms.build('fed_avg', local), data, rounds=1)
    ends.append(jax.device_get(state.params))
  start = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
  moved = jax.tree.map(lambda a, b: np.abs(a[0] - b).max(), ends[0], start)
  assert min(jax.tree.leaves(moved)) > 0
  for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
