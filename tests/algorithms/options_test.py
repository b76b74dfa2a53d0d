"""The options of every method: defaults as documented, and their ranges."""

import dataclasses
import functools
import inspect
import sys

import jax
import numpy as np
import optax
import pytest

from fesem_jax import algorithms, models
from fesem_jax.algorithms.common.first_clusters import Clustering
from fesem_jax.algorithms.wrappers import with_reclustering
from fesem_jax.core.types import Cohort
from fesem_jax.data import attacks
from fesem_jax.server import kmeans
from fesem_jax.training.compression import compression
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.methods import ALL_CLIENTS, federation, initial

# Defaults of papers, and where the papers' would do nothing on few clients.
DEFAULTS = [
  ('fesem', {'prox_lambda': 0.01, 'init_models': 'common', 'init_restarts': 20}),
  ('hypo_cluster', {'init_restarts': 1, 'weighting': 'uniform'}),
  ('fed_cluster', {'eps1': 0.4, 'eps2': 0.8, 'gamma': 0.13, 'min_size': 2}),
  ('robust', {'aggregation': 'trimmed_mean(0.1)', 'trim': 0.1}),
  ('p_fed_me', {'pfedme_lambda': 15.0, 'inner_steps': 5}),
  ('fed_ala', {'head_layers': ('logits',), 'ala_rate': 1.0}),
  ('moon', {'moon_mu': 1.0, 'moon_temperature': 0.5}),
]
LOCAL, ADAM = helpers.local(), helpers.local(optimizer=optax.adam(0.1))
LINEAR = models.build('logistic', helpers.SHAPE, 1, task='regression')
REGRESSION = LOCAL._replace(model=LINEAR)
KEY = jax.random.key(0)


def build(name, local=LOCAL, **options):
  return functools.partial(algorithms.build, name, local, **options)


def start(name, data=None, local=LOCAL, **options):
  def call():
    method = algorithms.build(name, local, **options)
    return jax.eval_shape(method.init, KEY, data or federation())

  return call


def some(name, **options):
  """A round of two clients."""

  def call():
    method, data = algorithms.build(name, LOCAL, **options), federation()
    state = jax.eval_shape(method.init, KEY, data)
    cohort = Cohort(np.array([0, 1], np.int32), everyone=False)
    jax.eval_shape(method.step, state, data, cohort, KEY)

  return call


def wrap(wrapper, name):
  return lambda: wrapper(algorithms.build(name, LOCAL), 1)


# Calls that are refused, and the subject that the error names.
REFUSED = [
  (build('fedavgg'), 'algorithm'),
  (build('fed_avg', prox_lambda=1.0), 'prox_lambda'),
  (build('fesem_ma', cluster_on='all'), 'cluster_on'),
  (build('clove', num_clusters=1, choose_num_clusters=True), 'num_clusters'),
  (build('fed_bn'), 'norm_layers'),
  (build('fed_bn', norm_layers=['bn*']), 'norm_layers'),
  (build('apfl', ADAM), 'optimizer'),
  (build('l2gd', ADAM), 'optimizer'),
  (build('l2gd', l2gd_lambda=2.5 * (1 + 1.5e-6)), 'l2gd_lambda'),
  (build('moon', helpers.local(hidden=())), 'moon'),
  (
    build('fed_nova', LOCAL._replace(keep_optimizer_state=True)),
    'keep_optimizer_state',
  ),
  (build('fesem', cluster_on='dense9'), 'cluster_on'),
  (start('fed_drift', max_clusters=5), 'max_clusters'),
  (start('fed_buff', buffer_size=7), 'buffer_size'),
  (start('fed_buff', concurrency=7), 'concurrency'),
  (start('fed_cluster', min_size=6), 'min_size'),
  (start('oracle', helpers.federation([4] * 6)), 'groups'),
  (start('per_fed_avg', local=helpers.local(batch_size=0)), 'steps'),
  *(
    (build('fesem', client_state='streamed', **options), 'client_state')
    for options in (
      {'recluster_every': 2},
      {'init_models': 'by_loss'},
      {'aggregation': 'median'},
    )
  ),
  *((build(name, REGRESSION), 'task') for name in ('fed_rc', 'flux', 'pacfl')),
  *(
    (build(name, head_layers=layers), 'head_layers')
    for name in algorithms.METHODS
    if 'head_layers' in algorithms.options(name)
    for layers in (['dense7'], ['dense0', 'logits'], [])
  ),
  *(
    (start(name, num_clusters=7), 'num_clusters')
    for name in algorithms.METHODS
    if 'num_clusters' in algorithms.options(name)
    and name not in ('fed_em', 'fed_rc', 'fed_soft')
  ),
  *(
    (start(name, attacks.apply(federation(), 'sign_flip', 0.5)), 'attack')
    for name in ('fed_dane', 'scaffold', 'l2gd', 'cfl_gp', 'stocfl', 'centralized')
  ),
  *(
    (start(name, local=LOCAL._replace(sends=compression('top_k(0.1)'))), 'compress')
    for name in ('fed_amp', 'fed_soft')  # Their models stay with clients too.
  ),
  (wrap(with_reclustering, 'fed_avg'), 'recluster_every'),
  *((some(name), 'clients_per_round') for name in sorted(ALL_CLIENTS)),
  (some('fesem', recluster_every=1, num_clusters=2), 'clients_per_round'),
]


def test_defaults_are_those_of_the_manual():
  for name, expected in DEFAULTS:
    assert algorithms.options(name).items() >= expected.items()
  # FedAdam: a first step on Delta = 1 from v = tau^2 (Reddi et al., Algorithm 2).
  optimizer = algorithms.options('fed_opt')['server_optimizer']
  step, _ = optimizer.update(-np.ones(1), optimizer.init(np.ones(1)))
  root = np.sqrt(0.99e-6 + 0.01)
  np.testing.assert_allclose(step, 0.1 * 0.1 / (root + 1e-3), rtol=1e-5)


def test_methods_have_105_options_at_most():
  factories = {*algorithms.METHODS.values()}
  own = [inspect.signature(f).parameters.keys() - {'local'} for f in factories]
  assert sum(map(len, own)) <= 105
  assert len(inspect.signature(algorithms.fesem).parameters) <= 1 + 13


@pytest.mark.parametrize(('call', 'subject'), REFUSED)
def test_what_methods_cannot_do_is_refused(call, subject):
  with pytest.raises(UserError, match=subject):
    call()


@pytest.mark.parametrize(
  ('options', 'most'),
  [
    ({}, 0),  # All.
    ({'init_clients': 3}, 3),
    ({'client_state': 'streamed'}, 5),
    ({'client_state': 'streamed', 'init_clients': 3}, 3),
    ({'client_state': 'streamed', 'init_clients': 9}, 5),
  ],
)
def test_fesems_first_clustering_is_as_its_options_say(options, most, monkeypatch):
  module, seen = sys.modules['fesem_jax.algorithms.fesem'], []
  monkeypatch.setattr(module, 'MAX_INITIAL_CLIENTS', 5)
  real = module.train_and_cluster

  def watched(local, starts, data, cohort, key, num_clusters, how):
    seen.append((local.schedule.epochs, local.schedule.steps, how))
    return real(local, starts, data, cohort, key, num_clusters, how)

  monkeypatch.setattr(module, 'train_and_cluster', watched)
  algorithm = algorithms.build(
    'fesem', helpers.local(steps=5), num_clusters=2, init_restarts=7, init_epochs=6,
    cluster_on='logits', weighting='by_examples', **options,
  )  # fmt: skip
  state = jax.eval_shape(algorithm.init, jax.random.key(0), federation())
  streamed = options.get('client_state') == 'streamed'
  assert (state.client_params is None) == streamed
  ((epochs, steps, how),) = seen
  assert (epochs, steps, how.max_clients) == (6, 0, most)
  assert (how.restarts, how.weighting) == (7, 'by_examples')
  assert how.comparison.partial
  assert how.keep == (not streamed)


def test_checks_get_the_options_of_the_first_clustering(monkeypatch):
  seen, module = [], sys.modules['fesem_jax.algorithms.flat_options']

  def wrap(method, every, clustering):
    seen.append((every, clustering))
    return method

  monkeypatch.setattr(module, 'with_reclustering', wrap)
  algorithms.build(
    'fesem', LOCAL, recluster_every=3, init_restarts=7, cluster_on='logits',
    weighting='by_examples',
  )  # fmt: skip
  algorithms.build('hypo_cluster', LOCAL, recluster_every=2, weighting='by_examples')
  (every, fesem), (_, hypo) = seen
  assert (every, fesem.restarts) == (3, 7)
  assert fesem.comparison.partial
  assert not hypo.comparison.partial
  assert fesem.weighting == hypo.weighting == 'by_examples'


def test_kmeans_restarts_as_often_as_the_paper():
  defaults = inspect.signature(kmeans.kmeans).parameters
  assert defaults['restarts'].default == 20  # Section 6.1.4.
  assert defaults['trim'].default == 0
  # Checks of clusters take those defaults, and train all clients once.
  assert Clustering()._replace(comparison=None) == Clustering(
    restarts=20, trim=0.0, weighting='uniform', comparison=None,
    max_clients=0, keep=False, into=None, tolerance=0.0,
  )  # fmt: skip


def test_a_method_takes_its_options_by_the_names_of_the_flags():
  local = helpers.local()
  made = algorithms.fesem(local, num_clusters=3, prox_lambda=0.2, init_epochs=2)
  named = algorithms.build(
    'fesem', local, num_clusters=3, prox_lambda=0.2, init_epochs=2
  )
  data, states = federation(), []
  for algorithm in (made, named):
    states.append(initial(algorithm, data))
  jax.tree.map(np.testing.assert_array_equal, *states)
  for name, method in algorithms.METHODS.items():
    parameters = inspect.signature(method).parameters
    assert all(not dataclasses.is_dataclass(p.default) for p in parameters.values())
    own = set(parameters) - {'local'}
    assert own - {'cluster_on'} <= set(algorithms.options(name)), name
  with pytest.raises(TypeError, match='penalty'):
    algorithms.fesem(local, penalty=0.1)
