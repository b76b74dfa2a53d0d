"""The deployed models of a run as a file, `models.npz`."""

import dataclasses
import json
import math
import pathlib

import numpy as np

from fesem_jax.core import offloading
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, by_layer
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.safe_files import read_npz, reading

# Models of more bytes than this are saved only if `save_models` is True.
MAX_BYTES = 2**30

LAST = 'models.npz'
BEST = 'models_best.npz'  # Of the round that is best on validation examples.


def are_wanted(
  models: ClientModels, num_clients: int, save_models: bool | None
) -> bool:
  """True if the models of M clients are to be saved; None saves up to `MAX_BYTES`."""
  if offloading.is_offloaded(models.personal):
    personal = models.personal.form.size
  else:
    personal = sum(math.prod(x.shape[1:]) for x in by_layer(models.personal).values())
  shared = sum(x.size for x in by_layer(models.shared).values())
  is_small = 4 * (shared + personal * num_clients) <= MAX_BYTES
  return is_small if save_models is None else save_models


def write(
  folder: pathlib.Path, models: DeployedModels, rounds: int, file: str = LAST
) -> None:
  """Writes the models after some rounds, whole or not at all."""
  about = {'rounds': rounds, **dataclasses.asdict(models.examples)}
  arrays = {'names': models.names.astype(str, copy=False)}
  arrays |= {'about': np.array([json.dumps(about)])}
  for name in ('choice', 'mixture'):
    if (values := getattr(models, name)) is not None:
      arrays[name] = values
  for kind, layers in (('shared', models.shared), ('own', models.personal)):
    arrays |= {f'{kind}/{path}': x for path, x in layers.items()}
  with replacing(folder / file) as out:
    np.savez(out, allow_pickle=False, **arrays)  # type: ignore[arg-type]


def are_current(folder: pathlib.Path, rounds: int) -> bool:
  """True if a workdir has the models after some rounds; deletes any others."""
  try:
    return read(folder, rounds) is not None
  except UserError:  # Whatever is wrong with it, it is written again.
    (folder / LAST).unlink()
    return False


def read(folder: pathlib.Path, rounds: int, file: str = LAST) -> DeployedModels | None:
  """The models of the round `rounds`; None where there is no such file."""
  path = folder / file
  if not path.exists():
    return None
  arrays = read_npz(path)
  with reading(path):
    about = json.loads(str(arrays.pop('about')[0]))
    is_current = about.pop('rounds') == rounds
    check(is_current, f'{path}: must be of round {rounds}, as summary.json')
    shared, personal = (
      {name.removeprefix(of): x for name, x in arrays.items() if name.startswith(of)}
      for of in ('shared/', 'own/')
    )
    lists = {name: tuple(x) for name, x in about.items() if isinstance(x, list)}
    rest = arrays.get('choice'), arrays.get('mixture'), arrays['names']
    return DeployedModels(shared, personal, *rest, Examples(**about | lists))
