"""What training refuses, and the subject that the error names."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fesem_jax import algorithms, chained, models, simulate
from fesem_jax.algorithms import wrappers
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import Attack
from fesem_jax.core.sending import Sends, sent_by_client
from fesem_jax.core.types import Model
from fesem_jax.data import attacks
from fesem_jax.training.augmentation import augmentation
from fesem_jax.training.batch_losses import Batch
from fesem_jax.training.cohort import for_each_client, train_cohort
from fesem_jax.training.compression import compression
from fesem_jax.training.local_sgd import local_sgd
from fesem_jax.training.optimizers import local_optimizer
from fesem_jax.training.privacy import differential_privacy
from fesem_jax.utils.errors import UserError
from tests.support import batch_norm, helpers
from tests.support.methods import federation

LOCAL, KEY, IMAGE = helpers.local(), jax.random.key(0), (6, 5)


def call(function, *args, **options):
  return functools.partial(function, *args, **options)


def a_round(name, local=LOCAL, wrap=lambda method: method, **options):
  """The start and a round of a method."""

  def run():
    method = wrap(algorithms.build(name, local, **options))
    data = federation()
    state = jax.eval_shape(method.init, KEY, data)
    jax.eval_shape(method.step, state, data, helpers.everyone(data), KEY)

  return run


def one_client(one, attack=None):
  """A round of a function of one client."""

  def run():
    data, start = (
      helpers.federation([3, 4]),
      ClientModels(helpers.first_models(LOCAL, 1)),
    )
    data = dataclasses.replace(data, attack=attack)
    for_each_client(one, LOCAL, start, data, helpers.everyone(data), KEY)

  return run


def sgd(**options):
  def one(client):
    model = local_sgd(client, **options)
    return model, client.send(model, client.received), None

  return one_client(one)


def honest(client):
  model = local_sgd(client)
  return model, model.params, None


def cohort(starts=None, **options):
  """Training of a cohort of two clients."""

  def run():
    data = helpers.federation([3, 4])
    models = (
      ClientModels(helpers.first_models(LOCAL, 1)) if starts is None else starts()
    )
    train_cohort(LOCAL, models, data, helpers.everyone(data), KEY, **options)

  return run


def loss_of(wrong):
  def run():
    model = Model(lambda key: jnp.float32(1), lambda p, x: p * x, wrong)
    ones = jnp.ones(4)
    Batch(model, ones, ones, ones).loss(jnp.float32(1))

  return run


def sends(function):
  params = {'w': jnp.ones((2, 3))}
  return call(sent_by_client, Sends(function), KEY, params, params)


def private(name, **options):
  dp = differential_privacy(0.02, 0.0, where='server', delta=0)
  return a_round(name, LOCAL._replace(sends=dp), **options)


def whole_run(name):
  def run():
    dp = differential_privacy(0.02, 0.0, where='server', delta=0)
    data, local = federation(), LOCAL._replace(sends=dp)
    simulate(algorithms.build(name, local), data, data, rounds=1)

  return run


NORM = LOCAL._replace(model=models.from_flax(batch_norm.LinenNet(), helpers.SHAPE))
KEEPS_NORM = NORM._replace(batch_stats='local')
MOMENTUM = helpers.local(optimizer=optax.sgd(0.1, momentum=0.9))._replace(
  keep_optimizer_state=True
)
SPARSE = LOCAL._replace(sends=compression('top_k(0.1)'))
TWO = {'num_clusters': 2}
DP = functools.partial(differential_privacy, delta=0)
REFUSED = [
  *((call(augmentation, text, shape), 'augment') for text, shape in [
      ('crop:4', (6,)), ('flip', (2, 6, 5, 3)), ('flip', (3, 8, 8)), ('crop', IMAGE),
      ('flip:2', IMAGE), ('crop:1.5', IMAGE), ('crop:100000', (6, 5, 3)),
      ('rotate:3', IMAGE), ('flip,flip', IMAGE), ('crop:0', IMAGE),
      ('flip,crop:6', IMAGE),
  ]),
  *((call(compression, text), 'compress') for text in [
      'top_k', 'top_k(0)', 'top_k(1.5)', 'quantize(1)', 'quantize(2.5)', 'zip(1)', '',
  ]),
  (call(local_optimizer, 'lion', 0.1), 'optimizer'),
  (call(DP, 1.0, 1.0, where='both'), 'where'),
  (call(chained, Sends(lambda k, s, w: w), DP(1.0, 1.0, where='client')), 'first'),
  (private('fed_avg'), 'weighting'),
  (private('fed_avg', aggregation='median'), 'dp'),
  (private('fesem', aggregation='krum', **TWO), 'dp'),
  (private('robust', **TWO), 'dp'),
  (private('scaffold'), 'scaffold'),
  (whole_run('fed_em'), 'dp'),
  (private('fesem', init_models='random', **TWO), 'dp'),
  (private('fesem', wrap=lambda m: wrappers.with_reclustering(m, 2), **TWO),
   'recluster_every'),
  *((a_round(name, NORM), 'BatchNorm') for name in [
      'apfl', 'cfl_gp', 'fed_ala', 'fed_amp', 'fed_buff', 'fed_cluster', 'fed_dyn',
      'fed_group', 'fed_nova', 'flux', 'moon', 'p_fed_me', 'per_fed_avg', 'robust',
      'stocfl',
  ]),
  *((a_round(name, local, wrappers.with_client_memory, **options), subject)
    for subject, local, name, options in [
      ('batch_stats', KEEPS_NORM, 'hypo_cluster', TWO),
      ('batch_stats', KEEPS_NORM, 'fed_em', {}),
      ('batch_stats', KEEPS_NORM, 'centralized', {}),
      *(('keep_optimizer_state', MOMENTUM, name, {})
        for name in ('ditto', 'p_fed_me', 'centralized')),
    ]),
  (a_round('scaffold', SPARSE, wrappers.with_client_memory), 'compress'),
  *((sends(function), 'sends') for function in [
      lambda key, s, w: jax.tree.map(lambda x: x.mean(), w),
      lambda key, s, w: jax.tree.map(lambda x: x.astype(jnp.bfloat16), w),
      lambda key, s, w: None,
  ]),
  (one_client(honest, Attack(np.arange(2) == 1, (attacks.Replacement(),))),
   'for_each_client'),
  (sgd(layers=['logit']), 'layers'),
  (sgd(layers=[]), 'layers'),
  (sgd(factors=np.ones(1, np.float32)), 'factors'),
  (cohort(lambda: ClientModels(personal=helpers.first_models(LOCAL, 1))), 'starts'),
  (cohort(lambda: ClientModels(helpers.first_models(LOCAL, 1), jnp.zeros(1, int))),
   'starts'),
  (cohort(epochs=np.full(2, -9, np.int32)), 'epochs'),
  (loss_of(lambda z, y: ((z - y) ** 2).mean()), 'loss'),
  (loss_of(lambda z, y: z[:, None]), 'loss'),
]  # fmt: skip


@pytest.mark.parametrize(('run', 'subject'), REFUSED)
def test_what_training_cannot_do_is_refused(run, subject):
  with pytest.raises(UserError, match=subject):
    run()
