"""The deployed models of a finished run as a file, `models.npz`, for any machine.

A plain .npz without compression: every array can be read by NumPy alone, and is mapped
from the disk here, so that one client's model is read without all others.
"""

import dataclasses
import hashlib
import json
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy

from fesem_jax import offloading
from fesem_jax.atomic import replacing
from fesem_jax.base import Model
from fesem_jax.bounded import first_line
from fesem_jax.deployed import DeployedModels, Examples, by_layer
from fesem_jax.errors import UserError
from fesem_jax.method import ClientModels

# Models of more bytes than this are saved only if `save_models` is True.
MAX_BYTES = 2**30

_FILE, _FORMAT = 'models.npz', 1
_BLOCK = 2**24  # Bytes that are put in order at once.


def num_bytes(models: ClientModels, num_clients: int) -> int:
  """Bytes of the file.

  Args:
    models: or their shapes.
    num_clients: M, without padding.
  """
  shared = sum(x.size * 4 for x in by_layer(models.shared).values())
  if offloading.is_offloaded(models.own):
    return shared + models.own.form.size * 4 * num_clients
  own = sum(x[0].size * 4 for x in by_layer(models.own).values())
  return shared + own * num_clients


def write(
  folder: pathlib.Path,
  models: ClientModels,
  places: np.ndarray,
  names: np.ndarray,
  examples: Examples,
  rounds: int,
) -> None:
  """Writes the deployed models, whole or not at all, block by block.

  Args:
    folder: the workdir.
    models: of the clients as arranged.
    places: [M] position in `models` of the first, second, ... client of the file.
    names: [M] of these clients.
    examples: what the models take.
    rounds: that were done.

  Raises:
    UserError: if the file cannot be written.
  """
  about = {'format': _FORMAT, 'rounds': rounds, 'run': _digest_of_run(folder)}
  about |= dataclasses.asdict(examples)
  with (
    replacing(folder / _FILE) as file,
    zipfile.ZipFile(file, 'w', zipfile.ZIP_STORED) as archive,
  ):
    everyone = np.arange(len(places))
    _add(archive, 'about', np.array([json.dumps(about)]), np.arange(1))
    _add(archive, 'names', np.asarray(names).astype(str), everyone)
    for name in ('choice', 'mixture'):
      if (values := getattr(models, name)) is not None:
        _add(archive, name, np.asarray(values), places)
    for path, x in by_layer(models.shared).items():
      _add(archive, f'shared/{path}', np.asarray(x), np.arange(len(x)))
    for path, x in by_layer(offloading.as_arrays(models.own)).items():
      _add(archive, f'own/{path}', np.asarray(x), places)


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


def remove(folder: pathlib.Path) -> None:
  """Deletes the file, e.g. one of fewer rounds; raises `UserError` if it cannot."""
  try:
    (folder / _FILE).unlink(missing_ok=True)
  except OSError as e:
    raise UserError(f'Cannot delete {folder / _FILE}: {e.strerror}.') from e


def is_of(folder: pathlib.Path, rounds: int) -> bool:
  """Whether the workdir has the models of its own run after so many rounds."""
  try:
    with np.load(folder / _FILE, allow_pickle=False) as held:
      about = _about(held)
  except Exception:  # Whatever is wrong with it, it is to be written again.
    return False
  return about.get('rounds') == rounds and about.get('run') == _digest_of_run(folder)


def _digest_of_run(folder: pathlib.Path) -> str:
  """Differs where the configuration of the workdir's run does."""
  try:
    config = (folder / 'config.json').read_bytes()
  except OSError:
    config = b''
  return hashlib.sha256(config).hexdigest()[:16]


def read(folder: pathlib.Path, model: Model | None) -> DeployedModels | None:
  """The deployed models that a workdir holds, without copying them to memory.

  Args:
    folder: the workdir.
    model: how they compute, where that is known.

  Returns:
    None where there is no such file.

  Raises:
    UserError: if it is damaged or of another version.
  """
  path = folder / _FILE
  try:
    arrays = _mapped(path)
    about = _about(arrays)
    if about.get('format') != _FORMAT:
      raise UserError(
        f'{path} was written by another version of this package (format '
        f'{about.get("format")}, this one reads {_FORMAT}).'
      )
    shared, own = (_below(arrays, part) for part in ('shared/', 'own/'))
    models = DeployedModels(
      shared,
      own,
      arrays.get('choice'),
      arrays.get('mixture'),
      arrays['names'],
      Examples(
        tuple(about['shape']), about['dtype'], about['scale'], about['num_classes']
      ),
      model,
    )
    per_client = (
      *own.values(),
      *(x for x in (models.choice, models.mixture) if x is not None),
    )
    sound = (
      all(len(x) == len(models.names) for x in per_client)
      and all(len(x) == models.num_models for x in shared.values())
      and (shared or own)
      and (models.choice is None or not len(models.choice) or models.choice.min() >= 0)
      and (models.choice is None or models.choice.max(initial=0) < models.num_models)
    )
    if not sound:
      raise ValueError('its arrays do not fit together')
    return models
  except FileNotFoundError:
    return None
  except UserError:
    raise
  except Exception as e:  # Parsers raise all kinds.
    raise UserError(
      f'{path} is damaged ({first_line(e)}); delete it and run the same command again, '
      'which makes it anew from the checkpoint.'
    ) from e


def _about(arrays: Mapping[str, Any]) -> dict[str, Any]:
  return dict(json.loads(str(arrays['about'][0])))


def _below(arrays: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
  return {n.removeprefix(part): x for n, x in arrays.items() if n.startswith(part)}


def _mapped(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of an uncompressed .npz, mapped from the disk once it is sound."""
  with zipfile.ZipFile(path) as archive, path.open('rb') as file:
    if bad := archive.testzip():  # Reads all and compares the checksums.
      raise ValueError(f'the checksum of {bad} is wrong')
    arrays = {}
    for info in archive.infolist():
      if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f'{info.filename} is compressed')
      file.seek(info.header_offset + 26)
      name_bytes, extra_bytes = (
        int.from_bytes(file.read(2), 'little') for _ in range(2)
      )
      file.seek(info.header_offset + 30 + name_bytes + extra_bytes)
      begin = file.tell()
      npy.read_magic(file)
      shape, _, dtype = npy.read_array_header_1_0(file)
      size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
      if dtype.hasobject or file.tell() - begin + size != info.file_size:
        raise ValueError(f'{info.filename} is not what its header says')
      name = info.filename.removesuffix('.npy')
      arrays[name] = (
        np.memmap(path, dtype, 'r', file.tell(), shape)
        if size
        else np.zeros(shape, dtype)
      )
    return arrays
