"""Start of a model, and its layers that train: --init_from and others."""

import functools
import hashlib
import pathlib
import re
from typing import Any

import jax
import numpy as np

from fesem_jax.core.types import Model
from fesem_jax.models.model_checks import check_parameters
from fesem_jax.models.starting import parameters_named, start_from, train_only
from fesem_jax.run.results import export
from fesem_jax.run.results.saved_run import load_run
from fesem_jax.utils.errors import argument, check

# Methods whose centers start as several random models.
_SEVERAL_STARTS = ('hypo_cluster', 'fed_em', 'fed_rc', 'fed_soft')


def started(config: dict[str, Any], model: Model) -> Model:
  """A model with the start, and the layers to train, that a configuration names."""
  source, only = config.get('init_from', ''), config.get('init_layers', [])
  if source:
    weights = _weights(source)
    model = start_from(model, weights, argument('init_from', source), only)
  learn = _learning(config, model)
  if source and _draws_centers(config):
    given = parameters_named(model, only or ['*'], 'init_layers')
    differ = not set(learn) <= set(given)
    check(differ, 'init_from: all centers would start alike; name init_layers')
  if len(learn) < len(jax.tree.leaves(check_parameters(model))):
    return train_only(model, learn, jax.random.key(config['seed']))
  return model


def _draws_centers(config: dict[str, Any]) -> bool:
  """True if centers that start from one model would stay equal."""
  by_loss = config.get('init_models') == 'by_loss'
  return by_loss or config['algorithm'] in _SEVERAL_STARTS


def _learning(config: dict[str, Any], model: Model) -> tuple[str, ...]:
  """Paths of the parameters that train."""
  return parameters_named(model, config.get('train_layers') or ['*'], 'train_layers')


def identity(config: dict[str, Any]) -> dict[str, str]:
  """The digest of the weights that a configuration starts from; {} where it draws them.

  A run is continued only with the weights that it began with.
  """
  if not config.get('init_from'):
    return {}
  digest = hashlib.sha256()
  for path, x in sorted(_weights(config['init_from']).items()):
    digest.update(f'{path} {x.dtype} {x.shape}'.encode())
    digest.update(np.ascontiguousarray(x).tobytes())
  return {'init_digest': digest.hexdigest()[:16]}


def depends_on_seed(config: dict[str, Any]) -> bool:
  """True if a layer that does not train may have been drawn."""
  drawn = not config.get('init_from') or config.get('init_layers')
  return bool(config.get('train_layers') and drawn)


def _weights(source: str) -> dict[str, np.ndarray]:
  """Path of each parameter -> its array, from a workdir or a file."""
  folder, cluster = pathlib.Path(source), None
  if not folder.exists() and (match := re.fullmatch(r'(.+):(\d{1,9})', source)):
    folder, cluster = pathlib.Path(match[1]), int(match[2])
  if folder.is_dir():
    return _of_run(folder, cluster)
  state = folder.stat()
  return _read(folder, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=1)
def _read(path: pathlib.Path, *_: int) -> dict[str, np.ndarray]:
  """The arrays of a file, read once while it does not change."""
  return export.read(path)


def _of_run(folder: pathlib.Path, cluster: int | None) -> dict[str, np.ndarray]:
  """The layers of a run's global model or of one of its centers."""
  deployed = load_run(folder).deployed
  count = deployed.num_models
  check(count, f'init_from: {folder} has personal models; use Run.save_model')
  single = cluster is not None or count == 1
  check(single, f'init_from: {folder} has {count} centers; name one, as {folder}:0')
  return {path: np.asarray(x[cluster or 0]) for path, x in deployed.shared.items()}
