"""The deployed models of a run as a file, `models.npz`.

Its arrays are not compressed; they are mapped from the disk, so that one client's model
is read without all others.
"""

import dataclasses
import json
import math
import pathlib
import zipfile

import numpy as np

from fesem_jax.core import offloading
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, by_layer
from fesem_jax.utils.atomic_files import write_arrays_atomically
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.safe_files import mapped, reading

# Models of more bytes than this are saved only if `save_models` is True.
MAX_BYTES = 2**30

_FILE = 'models.npz'
BEST = 'models_best.npz'  # Of the round that is best on validation examples.


def num_bytes(models: ClientModels, num_clients: int) -> int:
  """Bytes of the file of M clients' models, or of their shapes."""
  shared = sum(x.size * 4 for x in by_layer(models.shared).values())
  if offloading.is_offloaded(models.personal):
    return shared + models.personal.form.size * 4 * num_clients
  personal = by_layer(models.personal).values()
  return shared + sum(math.prod(x.shape[1:]) * 4 for x in personal) * num_clients


def write(
  folder: pathlib.Path, models: DeployedModels, rounds: int, file: str = _FILE
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
  write_arrays_atomically(folder / file, arrays, compress=False)


def remove(folder: pathlib.Path, file: str = _FILE) -> None:
  """Deletes the file, e.g. one of fewer rounds."""
  (folder / file).unlink(missing_ok=True)


def is_of(folder: pathlib.Path, rounds: int) -> bool:
  """True if a workdir has the models after some rounds, so that none are written."""
  try:
    return read(folder, rounds) is not None
  except UserError:  # Whatever is wrong with it, it is written again.
    return False


def read(folder: pathlib.Path, rounds: int, file: str = _FILE) -> DeployedModels | None:
  """The models of the round `rounds`, mapped; None where there is no such file."""
  path = folder / file
  if not path.exists():
    return None
  # Opened once: it may be replaced meanwhile.
  with reading(path), path.open('rb') as opened, zipfile.ZipFile(opened) as archive:
    plain = all(m.compress_type == zipfile.ZIP_STORED for m in archive.infolist())
    check(plain, f'{path}: must be an .npz without compression')
    names = [name.removesuffix('.npy') for name in archive.namelist()]
    arrays = {name: mapped(opened, archive, name) for name in names}
    about = json.loads(str(arrays.pop('about')[0]))
    is_current = about.pop('rounds') == rounds
    check(is_current, f'{path}: must be of round {rounds}, as summary.json')
    shared, personal = (
      {name.removeprefix(of): x for name, x in arrays.items() if name.startswith(of)}
      for of in ('shared/', 'own/')
    )
    lists = {name: tuple(x) for name, x in about.items() if isinstance(x, list)}
    examples = Examples(**about | lists)
    choice, mixture = arrays.get('choice'), arrays.get('mixture')
    return DeployedModels(shared, personal, choice, mixture, arrays['names'], examples)
