"""What servers refuse, and the subject that the error names."""

import functools

import flax.linen as nn
import jax
import pytest

from fesem_jax import models
from fesem_jax.core.types import Model
from fesem_jax.server import comparison, descriptors, hidden_units, robust
from fesem_jax.utils.errors import UserError
from tests.support import helpers

MODEL = helpers.local().model


def features_of_no_module():
  params = MODEL.init(jax.random.key(0))
  model = Model(MODEL.init, MODEL.apply)
  descriptors.features_of(model)(params, jax.numpy.ones((2, *helpers.SHAPE)))


def layers(name, shape):
  return lambda: hidden_units.layers_of(models.build(name, shape, 10))


REFUSED = [
  (lambda: comparison.build('dense1', MODEL), 'cluster_on'),
  (lambda: hidden_units.layers_of(models.from_flax(nn.Dense(3), (4,))), 'cluster_on'),
  (layers('resnet8', (8, 8, 3)), 'cluster_on'),
  (layers('gru', (5,)), 'cluster_on'),
  (layers('transformer', (5,)), 'cluster_on'),
  (features_of_no_module, 'model'),
  *(
    (functools.partial(robust.aggregation, text), 'aggregation')
    for text in (
      'nonsense', 'median(0.1)', 'mean(1)', 'trimmed_mean(0.5)', 'trimmed_mean(-0.1)',
      'norm_bound(-1)', 'krum(0)', 'krum(1.5)', 'krum(1', 'krum(1)(1)',
      'norm_bound(inf)', 'trimmed_mean(0.1, 2)', '',
    )
  ),
]  # fmt: skip


@pytest.mark.parametrize(('call', 'subject'), REFUSED)
def test_what_servers_cannot_do_is_refused(call, subject):
  with pytest.raises(UserError, match=subject):
    call()
