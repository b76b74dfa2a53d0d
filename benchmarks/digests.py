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

from fesem_jax import algorithms, data, models, portrait, sharding
from fesem_jax.atomic import write_atomically
from fesem_jax.base import FederatedData
from fesem_jax.simulation import simulate
from fesem_jax.training import local_training

_JSON = flags.DEFINE_string('json', '', 'File to write the digests to.')
_COMPARE = flags.DEFINE_string('compare', '', 'File of earlier digests.')
_METHODS = flags.DEFINE_list('methods', [], 'Only these; default: all.')

# Options that exercise a method; all others run with their defaults.
_OPTIONS: dict[str, list[dict[str, Any]]] = {
  'robust': [{'num_clusters': 4}, {'num_clusters': 2, 'aggregation': 'median'}],
  'fed_cluster': [
    {'min_size': 2, 'min_rounds': 0, 'check_every': 2, 'eps1': 1.1, 'eps2': 0.0}
  ],
  'hypo_cluster': [
    {'num_clusters': 4},
    {'num_clusters': 3, 'weighting': 'by_examples', 'init_restarts': 3},
    {'num_clusters': 3, 'variant': 'gradient', 'init_restarts': 3},
  ],
  'fed_avg': [{}, {'weighting': 'uniform'}],
  'fed_dane': [{}, {'same_cohort': True}],
  'fed_prox': [{}, {'straggler_fraction': 0.5, 'weighting': 'uniform'}],
  'fesem': [
    {'num_clusters': 4},
    {'num_clusters': 4, 'client_state': 'streamed', 'init_clients': 12},
    {
      'num_clusters': 3, 'weighting': 'by_examples', 'prox_weighting': 'paper',
      'loss_check_every': 2, 'reseed_empty': True,
    },
    {'num_clusters': 2, 'cluster_on': 'logits', 'prox_lambda': 0.0},
  ],
}  # fmt: skip


def _settings() -> Iterator[tuple[str, dict[str, Any]]]:
  """Name and how clients train, of each of three settings."""
  yield 'mlp, chunks of 5', {'model': 'mlp', 'clients_per_chunk': 5, 'epochs': 2}
  yield (
    'mlp, one by one, cohort, dropout, momentum',
    {
      'model': 'mlp',
      'clients_per_chunk': 1,
      'dropout_rate': 0.2,
      'cohort': 9,
      'optimizer': optax.sgd(0.05, momentum=0.9),
    },
  )
  yield (
    'small_cnn, 3 full batches',
    {
      'model': 'small_cnn',
      'epochs': 3,
      'batch_size': 0,
    },
  )


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
  cohort = 0 if name == 'fed_cluster' else setting.pop('cohort', 0)
  setting.pop('cohort', None)
  train, test = data.load(
    'digits', partition='rotated', num_clients=26, examples_per_client=23, seed=seed
  )
  train = _ragged(train)
  model = models.build(setting.pop('model'), train.example_shape, 10, (32,))
  optimizer = setting.pop('optimizer', optax.sgd(0.1))
  if setting.get('dropout_rate') and (
    name == 'fed_sgd' or options.get('variant') == 'gradient'
  ):
    optimizer = optax.sgd(0.05)
  local = local_training(
    model, optimizer, num_clients=cohort or 26, **{'batch_size': 8} | setting
  )
  algorithm = algorithms.build(name, local, **options)
  result = simulate(
    algorithm,
    train,
    test,
    rounds=4,
    seed=seed,
    clients_per_round=cohort,
    progress=False,
  )
  records = [{k: v for k, v in r.items() if k != 'seconds'} for r in result.history]
  outcome = {k: v for k, v in result.summary.items() if k in ('deployed', 'clusters')}
  text = json.dumps([records, outcome], sort_keys=True)
  ids = jnp.arange(result.arranged.num_clients)
  used = jax.jit(algorithm.client_params)(result.state, result.arranged, ids)
  as_arranged = portrait.in_order(result.portrait, np.argsort(result.places))
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
    for options in _OPTIONS.get(name, [{}]):
      for label, setting in _settings():
        key = f'{name}({json.dumps(options, sort_keys=True)}), {label}'
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
