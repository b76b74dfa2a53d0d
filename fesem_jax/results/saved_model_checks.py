"""What `models.npz` must hold, checked once when it is read.

Its checksums may be right and its arrays of the right lengths, and still it may predict
nonsense: a file that another program has written, or of another run.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core.types import Model
from fesem_jax.results import client_table
from fesem_jax.results.client_table import ClientTable
from fesem_jax.results.deployed_models import (
  EXAMPLE_DTYPES,
  DeployedModels,
  Examples,
  by_layer,
)
from fesem_jax.utils.display import shown
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import first_line
from fesem_jax.utils.stored_rows import blocks

_PER_CLIENT = {'names': 'U', 'choice': 'iu', 'mixture': 'f'}  # Kinds of their numbers.
_LAYERS = ('shared/', 'own/')
_FLOATS = (np.float16, np.float32, np.float64)
# By how much the weights of a mixture may miss 1, or the greatest one of them.
_TOLERANCE = 1e-3


def as_models(
  about: dict[str, Any], arrays: dict[str, np.ndarray], clients: ClientTable
) -> DeployedModels:
  """The models of a file, without saying how they compute.

  Args:
    about: what the file says of itself.
    arrays: by name, with all their layers.
    clients: what `clients.csv` holds.

  Raises:
    ValueError: if they are not what a run writes.
    UserError: if they are not of the clients of `clients.csv`.
  """
  for name, x in arrays.items():
    if name != 'about':
      _check_array(name, x)
  shared, own = (
    {n.removeprefix(part): x for n, x in arrays.items() if n.startswith(part)}
    for part in _LAYERS
  )
  if 'names' not in arrays:
    raise ValueError('it has no names of clients')
  choice, mixture = arrays.get('choice'), arrays.get('mixture')
  models = DeployedModels(
    shared, own, choice, mixture, arrays['names'], _examples(about)
  )
  _check_lengths(models)
  _check_choice(models)
  _check_clients(models, clients)
  return models


def check_model(model: Model, models: DeployedModels, source: str) -> None:
  """Raises `UserError` unless a model computes with the layers that were saved.

  Args:
    model: how they compute.
    models: what was saved.
    source: what names the model, for the error.
  """
  shape, num_classes = models.examples.shape, models.examples.num_classes
  batch = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
  try:
    params = jax.eval_shape(model.init, jax.random.key(0))
    wanted = {path: tuple(x.shape) for path, x in by_layer(params).items()}
  except Exception as e:  # A model may raise all kinds.
    raise UserError(f'{source} makes no model ({first_line(e)}).') from e
  held = {path: x.shape[1:] for path, x in (models.shared | models.own).items()}
  for path in sorted(wanted.keys() | held.keys()):
    here, there = wanted.get(path, 'absent'), held.get(path, 'absent')
    if here != there:
      raise UserError(
        f'{source} is not the one that was trained: its layer {path} is {here}, in the '
        f'run {there}.'
      )
  try:
    logits = jax.eval_shape(model.apply, params, batch).shape
  except Exception as e:
    raise UserError(
      f'{source} takes no examples of shape {shape}, as those of models.npz are '
      f'({first_line(e)}).'
    ) from e
  if logits != (1, num_classes):
    raise UserError(
      f'{source} gives logits of shape {logits} for one example, but models.npz has '
      f'{num_classes} classes.'
    )


def _examples(about: dict[str, Any]) -> Examples:
  """What the models take."""
  names = ('shape', 'dtype', 'scale', 'num_classes')
  if lacking := [name for name in names if name not in about]:
    raise ValueError(f'it has no `{lacking[0]}`')
  shape, dtype, scale, num_classes = (about[name] for name in names)
  if not isinstance(shape, list) or not all(map(_is_count, shape)):
    raise ValueError(f'`shape` is {shown(shape)}, but must be a list of sizes')
  if dtype not in EXAMPLE_DTYPES:
    raise ValueError(
      f'`dtype` is {shown(dtype)}, but must be one of {", ".join(EXAMPLE_DTYPES)}'
    )
  if type(scale) not in (int, float) or not _is_float32(scale):
    raise ValueError(f'`scale` is {shown(scale)}, but must be a number other than 0')
  if not _is_count(num_classes):
    raise ValueError(
      f'`num_classes` is {shown(num_classes)}, but must be a positive integer'
    )
  return Examples(tuple(shape), dtype, float(scale), num_classes)


def _is_count(value: Any) -> bool:
  return type(value) is int and 1 <= value < 2**31


def _is_float32(value: float) -> bool:
  """Whether float32 holds it as a finite number other than 0."""
  return abs(value) <= float(np.finfo(np.float32).max) and np.float32(value) != 0


def _check_array(name: str, x: np.ndarray) -> None:
  """Raises `ValueError` unless an array is of a kind that a run writes."""
  layer = name.startswith(_LAYERS)
  if not layer and name not in _PER_CLIENT:
    raise ValueError(f'it holds {shown(name)}, which no run writes')
  sound = x.dtype in _FLOATS if layer else x.dtype.kind in _PER_CLIENT[name]
  if not sound or not x.dtype.isnative:
    raise ValueError(f'{shown(name)} holds numbers of type {shown(x.dtype.str)}')
  if not x.size or x.ndim != {'names': 1, 'choice': 1, 'mixture': 2}.get(name, x.ndim):
    raise ValueError(f'{shown(name)} has shape {shown(x.shape)}')
  if x.dtype.kind == 'f' and not all(np.isfinite(rows).all() for _, rows in blocks(x)):
    raise ValueError(f'{shown(name)} holds values that are not finite')


def _check_lengths(models: DeployedModels) -> None:
  """Raises `ValueError` unless the layers are those of R models and M clients."""
  shared, own = models.shared, models.own
  if not shared and not own:
    raise ValueError('it has no layers')
  if both := shared.keys() & own.keys():
    raise ValueError(f'layer {shown(min(both))} is shared and of each client')
  paths = shared.keys() | own.keys()
  folders = {p[:i] for p in paths for i, c in enumerate(p) if c == '/'}
  if both := folders & paths:
    raise ValueError(f'{shown(min(both))} is a layer and holds layers')
  count = len(models.names)
  per_client = [*own.values(), models.choice, models.mixture]
  fits = all(len(x) == count for x in per_client if x is not None) and all(
    len(x) == models.num_models for x in shared.values()
  )
  if not fits:
    raise ValueError('its arrays do not fit together')


def _check_choice(models: DeployedModels) -> None:
  """Raises `ValueError` unless every client uses models that there are."""
  choice, mixture, count = models.choice, models.mixture, models.num_models
  if choice is not None and not 0 <= choice.min() <= choice.max() < count:
    raise ValueError(f'clients choose other models than the {count} that there are')
  if mixture is None:
    if choice is None and count > 1:
      raise ValueError(f'it does not say which of {count} models each client uses')
    return
  if models.own or choice is not None:
    raise ValueError(
      'clients of a mixture have neither a choice nor layers of their own'
    )
  if mixture.shape[1] != count:
    raise ValueError(f'`mixture` has {mixture.shape[1]} weights for {count} models')
  total = mixture.sum(axis=1, dtype=np.float64)
  if mixture.min() < 0 or np.abs(total - 1).max() > _TOLERANCE:
    raise ValueError('the weights of `mixture` are not shares that add up to 1')


def _check_clients(models: DeployedModels, clients: ClientTable) -> None:
  """Raises `UserError` unless models and table are of the same clients and clusters."""
  names, known = (client_table.encodable(x) for x in (models.names, clients.names))
  if names != known:
    what = 'the names of clients or their order'
  elif not _same_clusters(models, clients.cluster):
    what = 'the clusters of clients'
  else:
    return
  raise UserError(
    f'models.npz and clients.csv disagree on {what}: they are not of one run; delete '
    'both and run the same command again, which makes them anew from the checkpoint.'
  )


def _same_clusters(models: DeployedModels, cluster: np.ndarray | None) -> bool:
  """Whether clients use the models of their clusters."""
  if cluster is None:
    return models.choice is None and models.mixture is None
  if models.mixture is None:
    return models.choice is not None and np.array_equal(models.choice, cluster)
  if cluster.max() >= models.num_models:
    return False
  # Of a mixture, the model of greatest weight, which rounding may decide.
  chosen = models.mixture[np.arange(len(cluster)), cluster]
  return bool((chosen >= models.mixture.max(axis=1) - _TOLERANCE).all())
