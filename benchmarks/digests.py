r"""Digests of three rounds of each method: whether a change moved any number.

  python -m benchmarks.digests --json=before.json
  ... change the code ...
  python -m benchmarks.digests --json=after.json --compare=before.json

A digest is of the records of a run, and of its final state. Programs are compiled
without XLA's optimizations and cached in build/digests. Digests agree only on one
machine with one version of JAX; no machine's are kept here.
"""

import concurrent.futures
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
from typing import Any

os.environ['XLA_FLAGS'] = '--xla_backend_optimization_level=0'
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  os.environ['XLA_FLAGS'] += ' --xla_cpu_use_fusion_emitters=false'

import jax
import numpy as np
import optax
from absl import app, flags, logging

import fesem_jax as fj
from fesem_jax.data import attacks
from fesem_jax.server import optimizers

_JSON = flags.DEFINE_string('json', '', 'File to write the digests to.')
_COMPARE = flags.DEFINE_string('compare', '', 'File of earlier digests.')
_METHODS = flags.DEFINE_list('methods', [], 'Only these; default: all.')
_WORKERS = flags.DEFINE_integer('workers', 2, 'Processes.')

# Options of a method: the first in all settings, the others in one.
_OPTIONS: dict[str, list[dict[str, Any]]] = {
  'fed_avg': [
    {}, {'weighting': 'uniform'}, {'aggregation': 'median'},
    {'aggregation': 'trimmed_mean(0.2)'}, {'aggregation': 'norm_bound(0.5)'},
    {'aggregation': 'krum(2)'}, {'server_optimizer': 'momentum'},
  ],
  'robust': [
    {'num_clusters': 4},
    {'num_clusters': 2, 'aggregation': 'median'},
    {
      'num_clusters': 3, 'aggregation': 'krum(2)', 'trim': 0.2, 'init_epochs': 2,
      'init_tolerance': 0.0,
    },
    {'num_clusters': 3, 'aggregation': 'norm_bound(1.0)'},
    {'num_clusters': 3, 'aggregation': 'trimmed_mean(0.3)'},
  ],
  'fed_cluster': [
    {'min_size': 2, 'min_rounds': 0, 'check_every': 2, 'eps1': 1.1, 'eps2': 0.0},
    {
      'min_size': 2, 'min_rounds': 0, 'check_every': 1, 'eps1': 9.0, 'eps2': 0.0,
      'gamma': 0.0, 'max_clusters': 3, 'linkage': 'single',
    },
  ],
  'hypo_cluster': [
    {'num_clusters': 4, 'init_restarts': 20, 'init_rounds': 2},
    {
      'num_clusters': 3, 'weighting': 'by_examples', 'init_restarts': 3,
      'init_rounds': 2,
    },
    {'num_clusters': 3, 'init_restarts': 1, 'init_rounds': 0, 'init_clients': 9},
    {
      'num_clusters': 3, 'init_restarts': 2, 'init_rounds': 2,
      'server_optimizer': 'adam',
    },
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
    },
    {'num_clusters': 2, 'cluster_on': 'logits', 'prox_lambda': 0.0},
    {'num_clusters': 4, 'client_state': 'offloaded'},
    {'num_clusters': 3, 'track_objective': True},
    {'num_clusters': 3, 'aggregation': 'median'},
    {'num_clusters': 3, 'aggregation': 'trimmed_mean(0.3)'},
    {'num_clusters': 3, 'aggregation': 'norm_bound(1.0)'},
    {'num_clusters': 3, 'aggregation': 'krum(2)', 'init_epochs': 2},
    {'num_clusters': 4, 'recluster_every': 2, 'init_restarts': 1},
    {
      'num_clusters': 4, 'recluster_every': 2, 'server_optimizer': 'yogi',
      'track_objective': True,
    },
    {'num_clusters': 4, 'server_optimizer': 'momentum'},
    {'num_clusters': 3, 'init_models': 'random', 'server_optimizer': 'adagrad'},
    {'num_clusters': 3, 'init_models': 'by_loss', 'weighting': 'by_examples'},
  ],
  'fesem_ma': [
    {'num_clusters': 3}, {'num_clusters': 3, 'recluster_every': 2},
    {'num_clusters': 3, 'aggregation': 'median'},
    {'num_clusters': 3, 'client_state': 'streamed'},
  ],
  'fed_opt': [
    {}, {'server_optimizer': 'yogi'},
    {'server_optimizer': 'adagrad'}, {'server_optimizer': 'momentum'},
  ],
  'scaffold': [{}, {'server_learning_rate': 0.5, 'client_state': 'offloaded'}],
  'ditto': [
    {}, {'ditto_lambda': 1.0, 'client_state': 'offloaded'}
  ],
  'fed_per': [{}, {'head_layers': ('dense0',)}],
  'fed_rep': [{}, {'head_epochs': 2}],
  'fed_em': [{}, {'num_clusters': 2, 'weighting': 'uniform'}],
  'fed_rc': [{}, {'num_clusters': 2}],
  'fed_soft': [{}, {'num_clusters': 3, 'soft_lambda': 0.5}],
  'fed_few': [{}, {'num_clusters': 2, 'few_mu': 0.1}],
  'fed_gwc': [{}, {'min_size': 2, 'gwc_eps': 2.0}],
  'apfl': [{}, {'apfl_alpha': 0.75}],
  'p_fed_me': [
    {'pfedme_lambda': 2.0},
    {
      'inner_steps': 2, 'inner_learning_rate': 0.2, 'server_learning_rate': 0.5,
      'weighting': 'by_examples',
    },
  ],
  'per_fed_avg': [{}, {'meta_gradient': 'hessian_free', 'adaptation_rate': 0.05}],
  'fed_ala': [{}, {'ala_rate': 0.5}],
  'fed_amp': [{}, {'amp_lambda': 0.5, 'amp_sigma': 2.0}],
  'l2gd': [{}, {'l2gd_lambda': 4.0, 'aggregation_probability': 0.4}],
  'clove': [
    {'num_clusters': 4},
    {'num_clusters': 5, 'choose_num_clusters': True},
  ],
  'fed_nova': [{}, {'straggler_fraction': 0.5}],
  'fed_buff': [{}, {'buffer_size': 3}],
  'fed_dyn': [{}, {'dyn_alpha': 0.1, 'client_state': 'offloaded'}],
  'fed_babu': [{}, {'head_layers': ('dense0',)}],
  'centralized': [{}],
  'fed_bn': [{'norm_layers': ('dense0',)}],
  'lg_fed_avg': [{}, {'head_layers': ('dense0',)}],
  'moon': [{}, {'moon_mu': 5.0, 'moon_temperature': 0.2}],
  'cfl_gp': [{}, {'num_clusters': 3}],
  'pacfl': [
    {},
    {
      'num_clusters': 3, 'proximity': 'entries', 'angle_threshold': 9.0,
      'num_vectors': 1,
    },
    {'proximity': 'sum_of_angles'},
  ],
  'fed_group': [{}, {'num_clusters': 3}],
  'stocfl': [{}, {'stocfl_tau': 0.8, 'stocfl_lambda': 0.5}],
  'flux': [
    {'warmup_rounds': 2},
    {'warmup_rounds': 1, 'eps_scaling': 0.7},
  ],
  'fed_drift': [
    {'check_every': 1},
    {'max_clusters': 3, 'start_alone': False, 'drift_delta': 0.01,
     'check_every': 1},
  ],
}  # fmt: skip

# What differs between runs of one method.
_SETTINGS: dict[str, dict[str, Any]] = {
  'chunks': {'machine': {'clients_per_chunk': 5}, 'epochs': 2},
  'cohort, dropout, momentum': {
    'machine': {'clients_per_chunk': 1}, 'dropout_rate': 0.2, 'cohort': 9,
    'optimizer': (0.05, 0.9),
  },
  'cnn, full batches': {'model': 'small_cnn', 'epochs': 2, 'batch_size': 0},
  'shared start, schedule': {
    'machine': {'clients_per_chunk': 4, 'shared_start': 'on'}, 'schedule': 0.9,
  },
  'bad clients': {'machine': {'clients_per_chunk': 4}, 'attack': 'noise'},
}  # fmt: skip
_EVERY_METHOD = 'chunks', 'cohort, dropout, momentum'
# Methods of each kind of round, in the other settings.
_ALL_SETTINGS = 'fed_avg', 'fesem', 'hypo_cluster', 'robust', 'ditto'
# Their rounds are of all clients.
_ALL_CLIENTS = 'fed_cluster', 'cfl_gp', 'fed_drift', 'flux', 'fed_buff'

_Run = tuple[str, dict[str, Any], str]  # method, options, setting


def runs(methods: list[str]) -> list[_Run]:
  """All runs of some methods."""
  listed = []
  for name in methods:
    for i, options in enumerate(_OPTIONS.get(name, [{}])):
      settings: tuple[str, ...] = _EVERY_METHOD if i == 0 else _EVERY_METHOD[:1]
      if i == 0 and name in _ALL_SETTINGS:
        settings = tuple(_SETTINGS)
      listed += [(name, options, setting) for setting in settings]
  return listed


def digest(run: _Run) -> tuple[str, dict[str, str]]:
  """Name and digests of a run of three rounds."""
  name, options, setting_name = run
  setting = dict(_SETTINGS[setting_name])
  train, test = fj.data.load(
    'digits', partition='rotated', num_clients=26, examples_per_client=23, seed=3
  )
  train = _ragged(train)
  if 'attack' in setting:
    train = attacks.apply(train, setting['attack'], 0.2, 3)
  if name == 'oracle':
    train = fj.data.with_true_groups(train)
  model = fj.models.build(setting.get('model', 'mlp'), train.example_shape, 10, (32,))
  rate, momentum = setting.get('optimizer', (0.1, 0.0))
  one_step = name in ('fed_sgd', 'scaffold', 'apfl', 'l2gd')
  if one_step:
    momentum = 0.0
  local = fj.local_training(
    model,
    optax.sgd(rate, momentum=momentum or None),
    batch_size=setting.get('batch_size', 8),
    epochs=setting.get('epochs', 1),
    machine=fj.Machine(**setting.get('machine', {})),
    lr_schedule=optax.exponential_decay(1.0, 1, setting['schedule'])
    if 'schedule' in setting
    else None,
  )
  local = local._replace(dropout_rate=setting.get('dropout_rate', 0.0))
  options = dict(options)
  if 'server_optimizer' in options:
    options['server_optimizer'] = getattr(optimizers, options['server_optimizer'])()
  result = fj.simulate(
    fj.algorithms.build(name, local, **options),
    train,
    test,
    rounds=3,
    eval_every=0,
    seed=3,
    clients_per_round=0 if name in _ALL_CLIENTS else setting.get('cohort', 0),
    progress=False,
  )
  records = [{k: v for k, v in r.items() if k != 'seconds'} for r in result.history]
  text = json.dumps(records, sort_keys=True)
  key = f'{name}({json.dumps(run[1], sort_keys=True)}), {setting_name}'
  return key, {
    'records': hashlib.sha256(text.encode()).hexdigest()[:16],
    'state': _arrays_digest(result.state),
  }


def _arrays_digest(arrays: Any) -> str:
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
    leaf = np.asarray(leaf)
    digest.update(f'{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}'.encode())
    digest.update(leaf.tobytes())
  return digest.hexdigest()[:16]


def _ragged(train: fj.FederatedData) -> fj.FederatedData:
  """The split with client i lacking its last i % 5 examples."""
  sizes, offsets = np.asarray(train.sizes()), np.asarray(train.offsets)
  sizes = sizes - np.arange(len(sizes)) % 5
  rows = np.concatenate(
    [o + np.arange(n) for n, o in zip(sizes, offsets, strict=False)]
  )
  return fj.FederatedData.from_arrays(
    np.asarray(train.x)[rows],
    np.asarray(train.y)[rows],
    sizes,
    num_classes=train.num_classes,
    scale=train.scale,
    client_ids=np.asarray(train.client_ids),
    info=train.info,
  )


def _start_worker() -> None:
  cache = pathlib.Path(__file__).parent.parent / 'build' / 'digests'
  jax.config.update('jax_compilation_cache_dir', str(cache))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  jax.config.update('jax_traceback_in_locations_limit', 0)
  logging.set_verbosity(logging.ERROR)
  fj.setup_devices(1)


def main(argv: list[str]) -> None:
  """Writes and compares the digests."""
  del argv
  before: dict[str, dict[str, str]] = {}
  if _COMPARE.value:
    before = json.loads(pathlib.Path(_COMPARE.value).read_text())
  digests: dict[str, dict[str, str]] = {}
  with concurrent.futures.ProcessPoolExecutor(
    _WORKERS.value, multiprocessing.get_context('spawn'), _start_worker
  ) as pool:
    methods = _METHODS.value or list(fj.algorithms.METHODS)
    for key, digests[key] in pool.map(digest, runs(methods)):
      same = 'equal' if before.get(key) == digests[key] else 'CHANGED'
      print(f'{key}: {same if key in before else "new"}', flush=True)
      if _JSON.value:
        pathlib.Path(_JSON.value).write_text(json.dumps(digests, indent=1) + '\n')
  both = digests.keys() & before.keys()
  changed = [key for key in both if digests[key] != before[key]]
  print(f'{len(digests)} runs, {len(both)} compared, {len(changed)} changed')
  if changed:
    raise SystemExit(1)


if __name__ == '__main__':
  app.run(main)
