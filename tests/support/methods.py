"""The table of methods that shared properties run on, and what drives them."""

import jax
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.data import with_true_groups
from fesem_jax.models.mixture import as_one_model
from fesem_jax.server import optimizers as server_optimizers
from tests.support import helpers, reference

SIZES = [6, 3, 9, 5, 8, 4]
GROUPS = [0, 1, 0, 1, 0, 1]

OPTIMIZERS = {
  'yogi': server_optimizers.yogi(0.05),
  'adam': server_optimizers.adam(0.05),
  'momentum': server_optimizers.momentum(0.5),
}
# Methods with options that exercise them, then all others; shared properties hold for
# all.
METHODS = [
  ('fed_dws', {'server_learning_rate': 0.3}),
  ('robust', {'num_clusters': 2, 'trim': 0.2, 'aggregation': 'trimmed_mean(0.2)',
              'init_epochs': 2}),
  ('robust', {'num_clusters': 2, 'aggregation': 'median', 'init_epochs': 2}),
  ('fed_cluster', {'min_size': 2, 'min_rounds': 0, 'check_every': 2, 'eps1': 1.1,
                   'eps2': 0.0, 'max_clusters': 3}),
  ('hypo_cluster', {'num_clusters': 2, 'init_restarts': 3, 'init_rounds': 2}),
  ('fed_dane', {'same_cohort': True}),
  ('fed_prox', {'straggler_fraction': 0.5}),
  ('fed_avg', {}),
  ('fed_avg', {'weighting': 'uniform'}),
  ('fesem', {'num_clusters': 2, 'track_objective': True}),
  ('fesem', {'num_clusters': 3, 'weighting': 'by_examples', 'prox_weighting': 'paper',
             'recluster_every': 2, 'init_models': 'by_loss'}),
  ('fesem', {'num_clusters': 2, 'cluster_on': 'logits', 'prox_lambda': 0.0}),
  ('fesem', {'num_clusters': 2, 'client_state': 'streamed', 'init_clients': 4,
             'weighting': 'by_examples'}),
  ('fesem_ma', {'num_clusters': 2, 'init_models': 'random'}),
  ('fed_opt', {'server_optimizer': OPTIMIZERS['yogi']}),
  ('fesem', {'num_clusters': 2, 'server_optimizer': OPTIMIZERS['adam']}),
  ('hypo_cluster', {'num_clusters': 2, 'init_restarts': 3, 'init_rounds': 2,
                    'server_optimizer': OPTIMIZERS['momentum']}),
  ('ditto', {'ditto_lambda': 0.5}),
  ('fed_rep', {'head_epochs': 2}),
  ('apfl', {}),
  ('p_fed_me', {'inner_steps': 2, 'pfedme_lambda': 2.0}),
  ('fed_amp', {'amp_lambda': 0.2, 'amp_sigma': 2.0}),
  ('l2gd', {'l2gd_lambda': 4.0, 'aggregation_probability': 0.5}),
  ('clove', {'num_clusters': 2}),
  ('clove', {'num_clusters': 3, 'choose_num_clusters': True}),
  ('cfl_gp', {'num_clusters': 2}),
  ('pacfl', {'num_clusters': 2, 'num_vectors': 1}),
  ('fed_group', {'num_clusters': 2}),
  ('stocfl', {}),
  ('fed_drift', {'check_every': 1, 'drift_delta': 0.05}),
  ('flux', {'warmup_rounds': 1}),
  ('oracle', {}),
  ('oracle', {'weighting': 'by_examples', 'server_optimizer': OPTIMIZERS['adam']}),
  ('fed_em', {'num_clusters': 2}),
  ('fed_rc', {'num_clusters': 2}),
  ('fed_soft', {'num_clusters': 2}),
  ('fed_few', {'num_clusters': 2, 'few_mu': 0.1}),
  ('fed_gwc', {'min_size': 2, 'gwc_eps': 2.0}),
  ('fed_nova', {'straggler_fraction': 0.5}),
  ('fed_dyn', {'dyn_alpha': 0.3}),
  ('fed_bn', {'norm_layers': ('**/bias',)}),
]  # fmt: skip
# FedBuff has all of so few clients in each buffer.
METHODS += [
  (name, {})
  for name in algorithms.METHODS
  if name not in [listed for listed, _ in METHODS]
]

# Methods that need all clients in each round.
ALL_CLIENTS = {'fed_cluster', 'cfl_gp', 'fed_drift', 'flux', 'fed_buff'}
# What compares clients with each other exchanges their models: a sort of every
# coordinate, inner products of all pairs, k-means on all models. So does what has as
# many centers as clients, which are split over the devices as clients' models are.
COMPARES = {
  'fed_amp', 'fed_cluster', 'cfl_gp', 'robust', 'recluster_every', 'fed_drift', 'flux',
  'stocfl',
}  # fmt: skip
# Methods that treat layers apart. Others have programs that are compiled faster.
BY_LAYER = {
  'fed_per', 'fed_rep', 'fed_babu', 'lg_fed_avg', 'fed_bn', 'fed_ala', 'moon',
  'fesem_ma',
}  # fmt: skip


def hidden_of(index):
  """The hidden layers that a row needs."""
  name, options = METHODS[index]
  if name == 'fed_gwc':  # Or the losses of its steps would be more than the model.
    return (32,)
  return (5,) if name in BY_LAYER or 'cluster_on' in options else ()


def _label(value):
  """An option's value in a test's name."""
  named = [name for name, optimizer in OPTIMIZERS.items() if optimizer is value]
  return named[0] if named else str(value)


IDS = [f'{name}-{"-".join(map(_label, options.values()))}' for name, options in METHODS]
# The first row of every method, where one program of each is enough.
ONCE = [
  i
  for i, (name, _) in enumerate(METHODS)
  if name not in [earlier for earlier, _ in METHODS[:i]]
]
# Methods whose rounds differ in what devices hold and exchange. Where others are as one
# of these (FedSGD, FedProx, FedDist, FedDWS, FedOpt, FedNova as FedAvg; Ditto, pFedMe,
# Per-FedAvg and MOON as APFL; FedRep, FedBABU, LG-FedAvg, FedBN and FedALA as FedPer;
# FedRC as FedEM; the oracle as FeSEM; centralized
# as NonFed; FedBuff as the oracle; FedGroup as PACFL; StoCFL as CFL-GP; FedDyn as
# SCAFFOLD; L2GD as NonFed), compiling for chips and starting processes would show
# nothing new.
SHAPES_OF_ROUND = (
  'fed_avg', 'non_fed', 'fed_dane', 'scaffold', 'apfl', 'fed_per', 'fesem', 'fesem_ma',
  'fed_cluster', 'robust', 'hypo_cluster', 'clove', 'fed_em', 'fed_soft', 'fed_amp',
  'cfl_gp', 'pacfl', 'fed_drift', 'flux',
)  # fmt: skip
ONE_OF_EACH_SHAPE = [i for i in ONCE if METHODS[i][0] in SHAPES_OF_ROUND]
# The rows of `make test`, where a test is about the round and not about the method.
OF_ROUNDS = [
  i
  for i, (_, options) in enumerate(METHODS)
  if i in ONE_OF_EACH_SHAPE or 'client_state' in options
]


def over_rows(rows):
  """A test of each of these rows: of those whose rounds are like another's by night.

  Tests of one row are neighbors: a worker compiles its programs, then forgets them.
  """
  marks = {i: () if i in OF_ROUNDS else pytest.mark.nightly for i in rows}
  values = [pytest.param(i, id=IDS[i], marks=marks[i]) for i in rows]
  return pytest.mark.parametrize('index', values, scope='module')


def over_seeds(count):
  """A test of so many seeds: of the first, and by night of the others."""
  marks = [()] + [pytest.mark.nightly] * (count - 1)
  values = [pytest.param(i, marks=marks[i]) for i in range(count)]
  return pytest.mark.parametrize('seed', values)


def run(algorithm, data, rounds=3, cohort=None, seed=0, offloaded=False):
  """Final state and all infos of a few compiled rounds."""
  state = jax.jit(algorithm.init)(jax.random.key(seed), data)
  step, infos = jax.jit(algorithm.step), []
  for r in range(1, rounds + 1):
    chosen = cohort(r) if cohort else helpers.everyone(data)
    # Of the host's arrays there is one program: a start lies elsewhere than its round.
    state = state if offloaded else jax.device_get(state)
    state, info = step(state, data, chosen, jax.random.fold_in(jax.random.key(9), r))
    if algorithm.between is not None:
      state, info = algorithm.between(state, info)
    infos.append(info)
  return state, infos


def initial(algorithm, data, key=0):
  """Compiled initial state."""
  key = jax.random.key(key) if isinstance(key, int) else key
  return jax.jit(algorithm.init)(key, data)


def federation():
  """Six clients in two groups, which the oracle is told."""
  return with_true_groups(helpers.federation(SIZES, groups=GROUPS))


def matrix(stack):
  """[S, P] float64 of a stack."""
  return np.concatenate(
    [np.asarray(x, np.float64).reshape(len(x), -1) for x in jax.tree.leaves(stack)],
    axis=1,
  )


def deployed(algorithm, state, data):
  """[M, P] float64, what every client deploys; mixtures as one larger model each."""
  used = jax.jit(algorithm.deployed)(state, data)
  _, used, _ = as_one_model(algorithm.local.model, used)
  return matrix(used.params(data.num_clients))


def assert_close(a, b, rtol=1e-4, atol=1e-5):
  np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def reference_round(local, data, starts, ids, key, prox=None):
  """Each client of `ids` trained from its start by the reference: [S, P]."""
  out = []
  for start, i in zip(starts, ids, strict=True):
    batches = helpers.batches(data, local.schedule, i, key)
    penalty = 0.0 if prox is None else prox[i]
    out.append(reference.local_sgd(start, batches, 0.1, penalty)[0])
  return out


def reference_training(local, data, like, key, prox=None):
  """Client i, its start [P] -> its model [P] after the reference's local training."""

  def train(i, start):
    (model,) = reference_round(local, data, [unflatten(start, like)], [i], key, prox)
    return reference.flat(model)

  return train


def unflatten(vector, like):
  """A vector as a reference model of the same layers."""
  out, at = [], 0
  for layer in like:
    parts = []
    for part in layer:
      parts.append(vector[at : at + part.size].reshape(part.shape))
      at += part.size
    out.append(tuple(parts))
  return out


def reference_gradient(model, data, i):
  """Gradient of client i's whole loss, as a vector."""
  return reference.flat(reference.loss_and_gradient(model, *data.client(i))[1])
