"""The deployed models of a finished run as a file, `models.npz`, for any machine.

A plain .npz without compression: every array can be read by NumPy alone, and is mapped
from the disk here, so that one client's model is read without all others.
"""

import dataclasses
import json
import math
import pathlib
import zipfile
from typing import Any

import numpy as np
from numpy.lib import format as npy

from fesem_jax.core import offloading
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, by_layer
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import mapped, reading

# Models of more bytes than this are saved only if `save_models` is True.
MAX_BYTES = 2**30

_FILE = 'models.npz'
BEST = 'models_best.npz'  # Of the round that is best on validation examples.
_BLOCK = 2**24  # Bytes that are put in order at once.


def num_bytes(models: ClientModels, num_clients: int) -> int:
  """Bytes of the file of M clients' models, or of their shapes."""
  shared = sum(x.size * 4 for x in by_layer(models.shared).values())
  if offloading.is_offloaded(models.own):
    return shared + models.own.form.size * 4 * num_clients
  own = sum(math.prod(x.shape[1:]) * 4 for x in by_layer(models.own).values())
  return shared + own * num_clients


def write(
  folder: pathlib.Path,
  models: ClientModels,
  places: np.ndarray,
  names: np.ndarray,
  examples: Examples,
  rounds: int,
  file: str = _FILE,
) -> None:
  """Writes the deployed models, whole or not at all, block by block.

  Args:
    folder: the workdir.
    models: of the clients as arranged.
    places: [M] position in `models` of the first, second, ... client of the file.
    names: [M] of these clients.
    examples: what the models take.
    rounds: that were done.
    file: its name.
  """
  about = {'rounds': rounds, **dataclasses.asdict(examples)}
  with (
    replacing(folder / file) as out,
    zipfile.ZipFile(out, 'w', zipfile.ZIP_STORED) as archive,
  ):
    everyone = np.arange(len(places))
    _add(archive, 'names', np.asarray(names).astype(str, copy=False), everyone)
    for name in ('choice', 'mixture'):
      if (values := getattr(models, name)) is not None:
        _add(archive, name, np.asarray(values), places)
    for path, x in by_layer(models.shared).items():
      _add(archive, f'shared/{path}', np.asarray(x), np.arange(len(x)))
    for path, x in by_layer(offloading.as_arrays(models.own)).items():
      _add(archive, f'own/{path}', np.asarray(x), places)
    _add(archive, 'about', np.array([json.dumps(about)]), np.arange(1))


def _add(archive: zipfile.ZipFile, name: str, x: np.ndarray, rows: np.ndarray) -> None:
  """Adds an array's rows in the order of `rows`."""
  header = {
    'descr': npy.dtype_to_descr(x.dtype),
    'fortran_order': False,
    'shape': (len(rows), *x.shape[1:]),
  }
  step = max(1, _BLOCK // max(1, x[:1].nbytes))
  with archive.open(f'{name}.npy', 'w', force_zip64=True) as out:
    npy.write_array_header_1_0(out, header)
    for first in range(0, len(rows), step):
      out.write(np.ascontiguousarray(x[rows[first : first + step]]).tobytes())


def remove(folder: pathlib.Path, file: str = _FILE) -> None:
  """Deletes the file, e.g. one of fewer rounds."""
  (folder / file).unlink(missing_ok=True)


def is_of(folder: pathlib.Path, rounds: int) -> bool:
  """True if a workdir has the models after some rounds, so that none are written."""
  try:
    with zipfile.ZipFile(folder / _FILE) as archive:
      return bool(_about(archive)['rounds'] == rounds)
  except Exception:  # Whatever is wrong with it, it is written again.
    return False


def read(folder: pathlib.Path, rounds: int, file: str = _FILE) -> DeployedModels | None:
  """The deployed models that a workdir holds, without copying them to memory.

  None where there is no such file. Raises `UserError` if it is damaged, or not of the
  run's round `rounds`.
  """
  path = folder / file
  if not path.exists():
    return None
  # Opened once: it may be replaced meanwhile.
  with reading(path), path.open('rb') as opened, zipfile.ZipFile(opened) as archive:
    about, members = _about(archive), archive.infolist()
    is_plain = all(m.compress_type == zipfile.ZIP_STORED for m in members)
    check(is_plain, f'{path}: must be an .npz without compression')
    names = [m.filename.removesuffix('.npy') for m in members]
    arrays = {name: mapped(opened, archive, name) for name in names}
    check(
      about['rounds'] == rounds, f'{path}: must be of round {rounds}, as summary.json'
    )
    shared, own = (
      {name.removeprefix(of): x for name, x in arrays.items() if name.startswith(of)}
      for of in ('shared/', 'own/')
    )
    kind = {field.name: about[field.name] for field in dataclasses.fields(Examples)}
    listed = {name: tuple(x) for name, x in kind.items() if isinstance(x, list)}
    examples = Examples(**kind | listed)
    choice, mixture = arrays.get('choice'), arrays.get('mixture')
    return DeployedModels(shared, own, choice, mixture, arrays['names'], examples)


def _about(archive: zipfile.ZipFile) -> dict[str, Any]:
  with archive.open('about.npy') as file:
    (text,) = npy.read_array(file, allow_pickle=False)
  return json.loads(str(text))
