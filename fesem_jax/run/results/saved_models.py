"""The deployed models of a finished run as a file, `models.npz`, for any machine.

A plain .npz without compression: every array can be read by NumPy alone, and is mapped
from the disk here, so that one client's model is read without all others.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import zipfile
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from fesem_jax.core import offloading
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.run.results import client_table
from fesem_jax.run.results.client_table import ClientTable
from fesem_jax.run.results.deployed_models import DeployedModels, Examples, by_layer
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import first_line
from fesem_jax.utils.stored_rows import mapped

# Models of more bytes than this are saved only if `save_models` is True.
MAX_BYTES = 2**30

_FILE, _FORMAT = 'models.npz', 3
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
  clients: ClientTable,
  examples: Examples,
  rounds: int,
  file: str = _FILE,
) -> None:
  """Writes the deployed models, whole or not at all, block by block.

  Args:
    folder: the workdir.
    models: of the clients as arranged.
    places: [M] position in `models` of the first, second, ... client of the file.
    clients: the table of these clients, whose digest the file keeps.
    examples: what the models take.
    rounds: that were done.
    file: its name.
  """
  about = {'format': _FORMAT, **_identity(folder, rounds, client_table.digest(clients))}
  about |= dataclasses.asdict(examples)
  with (
    replacing(folder / file) as out,
    zipfile.ZipFile(out, 'w', zipfile.ZIP_STORED) as archive,
  ):
    everyone = np.arange(len(places))
    _add(archive, 'names', np.asarray(clients.names).astype(str, copy=False), everyone)
    for name in ('choice', 'mixture'):
      if (values := getattr(models, name)) is not None:
        _add(archive, name, np.asarray(values), places)
    for path, x in by_layer(models.shared).items():
      _add(archive, f'shared/{path}', np.asarray(x), np.arange(len(x)))
    for path, x in by_layer(offloading.as_arrays(models.own)).items():
      _add(archive, f'own/{path}', np.asarray(x), places)
    about['digest'] = _digest(archive, about)
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
  """Deletes the file, e.g. one of fewer rounds; raises `UserError` if it cannot."""
  try:
    (folder / file).unlink(missing_ok=True)
  except OSError as e:
    raise UserError(f'Cannot delete {folder / file}: {e.strerror}.') from e


def is_of(folder: pathlib.Path, rounds: int, clients: str) -> bool:
  """True if a workdir has the models of its own run, so that none are to be written.

  `clients` is the digest of the table of clients.
  """
  try:
    with zipfile.ZipFile(folder / _FILE) as archive:
      about = _about(archive)
      return _mismatch(folder, archive, about, rounds, clients) is None
  except Exception:  # Whatever is wrong with it, it is to be written again.
    return False


def read(
  folder: pathlib.Path, rounds: int, clients: ClientTable | None, file: str = _FILE
) -> DeployedModels | None:
  """The deployed models that a workdir holds, without copying them to memory.

  None where there is no such file. Raises `UserError` if it is damaged, of another
  version, or not of the run of `rounds` rounds with these clients.
  """
  path = folder / file
  # Of the best round, no checkpoint may be left.
  remedy = 'delete it and run the same command again, which recreates it'
  if file == BEST:
    remedy = 'only a new run, in another `workdir`, makes it again'
  try:
    # Opened once: it may be replaced meanwhile.
    with path.open('rb') as opened, zipfile.ZipFile(opened) as archive:
      about = _about(archive)
      # The table of the best round is not kept.
      digest = about['clients'] if clients is None else client_table.digest(clients)
      if fault := _mismatch(folder, archive, about, rounds, digest):
        raise UserError(f'{path} {fault}; {remedy}.')
      arrays = _mapped(opened, archive)
    shared, own = (
      {name.removeprefix(of): x for name, x in arrays.items() if name.startswith(of)}
      for of in ('shared/', 'own/')
    )
    names = {field.name for field in dataclasses.fields(Examples)}
    kind = {name: about[name] for name in names & set(about)}  # Older files lack some.
    examples = Examples(**kind | {'shape': tuple(about['shape'])})
    choice, mixture = arrays.get('choice'), arrays.get('mixture')
    return DeployedModels(shared, own, choice, mixture, arrays['names'], examples)
  except FileNotFoundError:
    return None
  except UserError:
    raise
  except Exception as e:  # Parsers raise all kinds.
    raise UserError(f'{path} is damaged ({first_line(e)}); {remedy}.') from e


def _identity(folder: pathlib.Path, rounds: int, clients: str) -> dict[str, Any]:
  """Entries that tie the file to the others of its workdir."""
  try:
    config = (folder / 'config.json').read_bytes()
  except OSError:
    config = b''
  run = hashlib.sha256(config).hexdigest()[:16]
  return {'rounds': rounds, 'run': run, 'clients': clients}


def _digest(archive: zipfile.ZipFile, about: dict[str, Any]) -> str:
  """Differs where `about` or an array of the archive does, by their checksums."""
  arrays = [
    (info.filename, info.file_size, info.CRC)
    for info in archive.infolist()
    if info.filename != 'about.npy'
  ]
  text = json.dumps([about, sorted(arrays)], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _mismatch(
  folder: pathlib.Path,
  archive: zipfile.ZipFile,
  about: dict[str, Any],
  rounds: int,
  clients: str,
) -> str | None:
  """In what the file does not belong to its workdir; None if it does."""
  if about.get('format') != _FORMAT:
    version = printable(about.get('format'))
    return f'is of another version of this package (format {version}, not {_FORMAT})'
  others = {name: x for name, x in about.items() if name != 'digest'}
  if about.get('digest') != _digest(archive, others):
    return 'is not what the run wrote, as its digest shows'
  wanted = _identity(folder, rounds, clients)
  if about.get('run') != wanted['run']:
    return 'is of another run than config.json'
  if about.get('rounds') != rounds:
    return f'is of another round than summary.json ({rounds})'
  if about.get('clients') != clients:
    return 'is of another run than clients.csv, as its digest of that file shows'
  return None


def _about(archive: zipfile.ZipFile) -> dict[str, Any]:
  with archive.open('about.npy') as file:
    (text,) = npy.read_array(file, allow_pickle=False)
  about = json.loads(str(text))
  if not isinstance(about, dict):
    raise ValueError('`about` is not a JSON object')
  return about


def _mapped(file: BinaryIO, archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
  """The arrays of an uncompressed .npz, mapped from the disk once they are sound."""
  arrays = {}
  for info in archive.infolist():
    name = info.filename.removesuffix('.npy')
    if info.compress_type != zipfile.ZIP_STORED:
      raise ValueError(f'{name} is compressed')
    if name in arrays:
      raise ValueError(f'{name} occurs twice')
    arrays[name] = mapped(file, archive, name)
  return arrays
