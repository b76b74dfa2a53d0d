r"""Digests of a short run of each method: whether a rebuild changed any figure.

  python -m benchmarks.digests --json=before.json
  ... change the code ...
  python -m benchmarks.digests --json=after.json --compare=before.json

A digest is of every number that a run records, of the models that clients deploy after
it, and of what its figures are drawn from. Digests agree only on one machine with one
version of JAX; no machine's are kept here.
"""

import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from experiments.methods import SERVER_OPTIMIZERS
from fesem_jax import algorithms, data, models
from fesem_jax.core import sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import Machine, local_training
from fesem_jax.data import corruption
from fesem_jax.run import figure_data
from fesem_jax.run.callbacks import Progress
from fesem_jax.run.simulation import simulate
from fesem_jax.utils.atomic_files import write_atomically

_JSON = flags.DEFINE_string('json', '', 'File to write the digests to.')
_COMPARE = flags.DEFINE_string('compare', '', 'File of earlier digests.')
_METHODS = flags.DEFINE_list('methods', [], 'Only these; default: all.')

# Options of a method: the first run in every setting, the others in one. Together they
# name every option that the method has.
_OPTIONS: dict[str, list[dict[str, Any]]] = {
  'fed_avg': [
    {}, {'weighting': 'uniform'}, {'aggregation': 'median'},
    {'aggregation': 'trimmed_mean', 'beta': 0.2},
    {'aggregation': 'norm_bound', 'norm_bound': 0.5},
    {'aggregation': 'krum', 'krum_models': 2}, {'server_optimizer': 'momentum'},
  ],
  'robust': [
    {'num_clusters': 4},
    {'num_clusters': 2, 'aggregation': 'median', 'init_seeding': 'plusplus'},
    {
      'num_clusters': 3, 'aggregation': 'krum', 'krum_models': 2, 'trim': 0.2,
      'init_epochs': 2, 'init_tolerance': 0.0, 'init_restarts': 3,
    },
    {'num_clusters': 3, 'aggregation': 'norm_bound', 'norm_bound': 1.0},
    {'num_clusters': 3, 'beta': 0.3},
  ],
  'fed_cluster': [
    {'min_size': 2, 'min_rounds': 0, 'check_every': 2, 'eps1': 1.1, 'eps2': 0.0},
    {
      'min_size': 2, 'min_rounds': 0, 'check_every': 1, 'eps1': 9.0, 'eps2': 0.0,
      'eps1_scale': 'absolute', 'gamma': 0.0, 'max_clusters': 3, 'linkage': 'minimax',
      'weighting': 'uniform',
    },
  ],
  'hypo_cluster': [
    {'num_clusters': 4},
    {'num_clusters': 3, 'weighting': 'by_examples', 'init_restarts': 3},
    {'num_clusters': 3, 'variant': 'gradient', 'init_restarts': 3},
    {'num_clusters': 3, 'init_restarts': 1, 'init_rounds': 0, 'init_clients': 9},
    {'num_clusters': 3, 'init_restarts': 2, 'server_optimizer': 'adam'},
  ],
  'fed_dane': [{}, {'same_cohort': True, 'prox_mu': 0.5}],
  'fed_prox': [
    {}, {'straggler_fraction': 0.5, 'weighting': 'uniform'}, {'prox_mu': 0.0}
  ],
  'fesem': [
    {'num_clusters': 4},
    {'num_clusters': 4, 'client_state': 'streamed', 'init_clients': 12},
    {
      'num_clusters': 3, 'weighting': 'by_examples', 'prox_weighting': 'paper',
      'loss_check_every': 2, 'reseed_empty': True,
    },
    {'num_clusters': 2, 'cluster_on': 'logits', 'prox_lambda': 0.0},
    {'num_clusters': 4, 'client_state': 'offloaded'},
    {'num_clusters': 3, 'temperature': 0.2, 'track_objective': True},
    {'num_clusters': 3, 'aggregation': 'median', 'init_seeding': 'plusplus'},
    {'num_clusters': 3, 'aggregation': 'trimmed_mean', 'beta': 0.3},
    {'num_clusters': 3, 'aggregation': 'norm_bound', 'norm_bound': 1.0},
    {'num_clusters': 3, 'aggregation': 'krum', 'krum_models': 2, 'init_epochs': 2},
    {'num_clusters': 4, 'recluster_every': 2, 'init_restarts': 1},
    {
      'num_clusters': 4, 'recluster_every': 2, 'server_optimizer': 'yogi',
      'track_objective': True, 'loss_check_every': 3,
    },
    {'num_clusters': 4, 'reseed_empty': True, 'server_optimizer': 'momentum'},
    {'num_clusters': 3, 'max_age': 1, 'reseed_empty': True},
    {'num_clusters': 3, 'late_joins': True, 'init_clients': 12, 'max_age': 2},
    {
      'num_clusters': 3, 'late_joins': True, 'init_clients': 12,
      'client_state': 'streamed',
    },
    {'num_clusters': 3, 'init_models': 'random', 'server_optimizer': 'adagrad'},
    {'num_clusters': 3, 'init_models': 'by_loss', 'weighting': 'by_examples'},
  ],
  'fesem_ma': [
    {'num_clusters': 3}, {'num_clusters': 3, 'recluster_every': 2},
    {'num_clusters': 3, 'aggregation': 'median'},
    {'num_clusters': 3, 'client_state': 'streamed'},
  ],
  'fed_opt': [
    {}, {'server_optimizer': 'yogi', 'weighting': 'uniform'},
    {'server_optimizer': 'adagrad'}, {'server_optimizer': 'momentum'},
  ],
  'scaffold': [{}, {'server_learning_rate': 0.5, 'client_state': 'offloaded'}],
  'ditto': [
    {}, {'ditto_lambda': 1.0, 'weighting': 'uniform', 'client_state': 'offloaded'}
  ],
  'fed_per': [{}, {'head_layers': ('dense0',), 'weighting': 'uniform'}],
  'fed_rep': [{}, {'head_epochs': 2, 'weighting': 'by_examples'}],
  'fed_em': [{}, {'num_clusters': 2, 'weighting': 'uniform'}],
  'fed_rc': [{}, {'num_clusters': 2, 'weighting': 'uniform'}],
  'fed_soft': [
    {}, {'num_clusters': 3, 'clients_per_center': 4, 'importance_every': 1}
  ],
  'apfl': [
    {}, {'apfl_alpha': 0.75, 'adapt_alpha': False, 'weighting': 'uniform'},
  ],
  'p_fed_me': [
    {'pfedme_lambda': 2.0},
    {
      'inner_steps': 2, 'inner_learning_rate': 0.2, 'server_learning_rate': 0.5,
      'weighting': 'by_examples',
    },
  ],
  'per_fed_avg': [
    {},
    {
      'meta_gradient': 'hessian_free', 'hessian_delta': 0.02, 'adaptation_rate': 0.05,
      'weighting': 'by_examples',
    },
  ],
  'fed_ala': [
    {}, {
      'ala_rate': 0.5, 'ala_sample': 0.5, 'ala_start_epochs': 3, 'weighting': 'uniform',
    },
  ],
  'fed_amp': [{}, {'amp_lambda': 0.5, 'amp_sigma': 2.0, 'amp_alpha': 0.05}],
  'l2gd': [{}, {'l2gd_lambda': 4.0, 'aggregation_probability': 0.4}],
  'clove': [
    {'num_clusters': 4},
    {'num_clusters': 3, 'first_assignment': 'losses', 'weighting': 'uniform'},
    {'num_clusters': 5, 'choose_num_clusters': True},
  ],
  'fed_nova': [{}, {'straggler_fraction': 0.5, 'weighting': 'uniform'}],
  'fed_buff': [{}, {'buffer_size': 3, 'weighting': 'by_examples'}],
  'fed_dyn': [{}, {'dyn_alpha': 0.1, 'client_state': 'offloaded'}],
  'fed_babu': [{}, {'head_layers': ('dense0',), 'weighting': 'uniform'}],
  'centralized': [{}],
  'fed_bn': [{'norm_layers': ('dense0',)}],
  'lg_fed_avg': [{}, {'head_layers': ('dense0',), 'weighting': 'uniform'}],
  'moon': [
    {},
    {
      'moon_mu': 5.0, 'moon_temperature': 0.2, 'features_before': 'logits',
      'weighting': 'uniform',
    },
  ],
  'cfl_gp': [
    {},
    {
      'num_clusters': 3, 'variant': 'gradient', 'cluster_every': 1,
      'cluster_updates': 3, 'weighting': 'by_examples',
    },
  ],
  'pacfl': [
    {},
    {
      'num_clusters': 3, 'proximity': 'entries', 'angle_threshold': 9.0,
      'num_vectors': 1, 'linkage': 'complete', 'init_clients': 12,
    },
    {'proximity': 'sum_of_angles', 'linkage': 'single', 'weighting': 'uniform'},
  ],
  'fed_group': [
    {},
    {
      'num_clusters': 3, 'init_clients': 9, 'init_epochs': 2, 'inter_group_rate': 0.3,
      'prox_mu': 0.1, 'weighting': 'uniform',
    },
  ],
  'stocfl': [
    {},
    {
      'stocfl_tau': 0.8, 'stocfl_lambda': 0.5, 'max_clusters': 30,
      'anchor_epochs': 0, 'weighting': 'by_examples',
    },
  ],
  'flux': [
    {'warmup_rounds': 2},
    {'warmup_rounds': 1, 'eps_scaling': 0.7, 'weighting': 'uniform'},
  ],
  'fed_drift': [
    {'check_every': 1},
    {'max_clusters': 3, 'start_alone': False, 'drift_delta': 0.01,
     'check_every': 1, 'weighting': 'uniform'},
  ],
}  # fmt: skip

# Settings in which every method runs, by what they exercise.
_SETTINGS: dict[str, dict[str, Any]] = {
  'mlp, chunks of 5': {'machine': Machine(clients_per_chunk=5), 'epochs': 2},
  'mlp, one by one, cohort, dropout, momentum': {
    'machine': Machine(clients_per_chunk=1),
    'dropout_rate': 0.2,
    'cohort': 9,
    'optimizer': optax.sgd(0.05, momentum=0.9),
  },
  'small_cnn, 3 full batches': {'model': 'small_cnn', 'epochs': 3, 'batch_size': 0},
}

# Settings of features that are not a method's, in which a few methods run.
_FEATURES: dict[str, dict[str, Any]] = {
  'shared start, rate by round': {
    'machine': Machine(clients_per_chunk=4, shared_start='on'),
    'lr_schedule': optax.exponential_decay(1.0, 1, 0.9),
  },
  'noise of bad clients': {
    'machine': Machine(clients_per_chunk=4),
    'corrupt': 'noise',
  },
}
_FEATURED = ('fed_avg', 'fesem', 'hypo_cluster', 'robust')

# Methods whose rounds are of all clients, in every setting.
_ALL_CLIENTS = ('fed_cluster', 'cfl_gp', 'fed_drift', 'flux')


def _runs(name: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
  """Key, options and setting of every run of a method."""
  every = _OPTIONS.get(name, [{}])
  of_chunks, of_cohort, _ = _SETTINGS
  for i, options in enumerate(every):
    of_absent_clients = options.keys() & {'max_age', 'late_joins', 'same_cohort'}
    own = [of_cohort if of_absent_clients else of_chunks]
    for label in _SETTINGS if i == 0 or (name == 'fesem' and i < 4) else own:
      key = f'{name}({json.dumps(options, sort_keys=True)}), {label}'
      yield key, options, _SETTINGS[label]
  for label, setting in _FEATURES.items() if name in _FEATURED else ():
    yield f'{name}({json.dumps(every[0])}), {label}', every[0], setting


def _arrays_digest(arrays: Any) -> str:
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
    leaf = np.asarray(leaf)
    digest.update(f'{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}'.encode())
    text = leaf.dtype.kind == 'U'
    digest.update(str(leaf.tolist()).encode() if text else leaf.tobytes())
  return digest.hexdigest()[:16]


def digest_of_run(
  name: str, options: dict[str, Any], setting: dict[str, Any], seed: int
) -> dict[str, str]:
  """Digests of a run of four rounds: its records, models and portrait."""
  setting = dict(setting)
  cohort = setting.pop('cohort', 0)
  if name in _ALL_CLIENTS:
    cohort = 0
  train, test = data.load(
    'digits', partition='rotated', num_clients=26, examples_per_client=23, seed=seed
  )
  train = _ragged(train)
  if 'corrupt' in setting:
    train = corruption.corrupted(train, setting.pop('corrupt'), 0.2, seed)
  model = models.build(setting.pop('model', 'mlp'), train.example_shape, 10, (32,))
  optimizer = setting.pop('optimizer', optax.sgd(0.1))
  if setting.get('dropout_rate') and (
    name in ('fed_sgd', 'scaffold', 'apfl', 'l2gd')
    or options.get('variant') == 'gradient'
  ):
    optimizer = optax.sgd(0.05)
  others = 'dropout_rate', 'local_lr_schedule', 'augmentation'
  fields = {name: setting.pop(name) for name in others if name in setting}
  local = local_training(model, optimizer, **{'batch_size': 8} | setting)
  local = local._replace(**fields)
  options = dict(options)
  if 'server_optimizer' in options:
    options['server_optimizer'] = SERVER_OPTIMIZERS[options['server_optimizer']]()
  algorithm = algorithms.build(name, local, **options)
  result = simulate(
    algorithm,
    train,
    test,
    rounds=4,
    seed=seed,
    clients_per_round=cohort,
    callbacks=[Progress(False)],
  )
  records = [{k: v for k, v in r.items() if k != 'seconds'} for r in result.history]
  outcome = {k: v for k, v in result.summary.items() if k in ('deployed', 'clusters')}
  text = json.dumps([records, outcome], sort_keys=True)
  ids = jnp.arange(result.arranged.num_clients)
  used = jax.jit(algorithm.client_params)(result.state, result.arranged, ids)
  as_arranged = figure_data.in_order(result.portrait, np.argsort(result.places))
  return {
    'records': hashlib.sha256(text.encode()).hexdigest()[:16],
    'models': _arrays_digest(used),
    'portrait': _arrays_digest(as_arranged),
  }


def _ragged(train: FederatedData) -> FederatedData:
  """The split with client i lacking its last i % 5 examples."""
  sizes = np.asarray(train.sizes())
  keep = [
    np.arange(n - i % 5) + o
    for i, (n, o) in enumerate(zip(sizes, np.asarray(train.offsets), strict=False))
  ]
  rows = np.concatenate(keep)
  return FederatedData.from_arrays(
    np.asarray(train.x)[rows],
    np.asarray(train.y)[rows],
    np.array([len(k) for k in keep]),
    num_classes=train.num_classes,
    scale=train.scale,
    client_ids=np.asarray(train.client_ids),
    info=train.info,
  )


def main(argv: list[str]) -> None:
  """Writes and compares the digests."""
  del argv
  sharding.setup_devices(0)
  before = {}
  if _COMPARE.value:
    before = json.loads(pathlib.Path(_COMPARE.value).read_text())
  digests: dict[str, dict[str, str]] = {}
  for name in _METHODS.value or algorithms.METHODS:
    for key, options, setting in _runs(name):
      digests[key] = digest_of_run(name, options, setting, seed=3)
      verdict = ''
      if key in before:
        changed = [k for k, v in before[key].items() if digests[key].get(k) != v]
        verdict = f'  {"CHANGED: " + ", ".join(changed) if changed else "equal"}'
      print(f'{key}: {digests[key]}{verdict}', flush=True)
    if _JSON.value:
      write_atomically(pathlib.Path(_JSON.value), json.dumps(digests, indent=1) + '\n')
  differing = [k for k, v in digests.items() if k in before and before[k] != v]
  if before:
    print(
      f'{len(digests.keys() & before.keys())} compared, {len(differing)} differ, '
      f'{len(digests.keys() - before.keys())} new'
    )
  if differing:
    raise SystemExit(1)


if __name__ == '__main__':
  app.run(main)
