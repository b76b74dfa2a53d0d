"""Reading of files that may be damaged, with clear errors."""

import contextlib
import gzip
import importlib
import io
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from fesem_jax.utils.errors import UserError

# What a pickle of arrays may call.
_ALLOWED = {
  ('numpy', 'ndarray'),
  ('numpy', 'dtype'),
  ('numpy._core.multiarray', '_reconstruct'),
  ('numpy._core.multiarray', 'scalar'),
  ('numpy._core.numeric', '_frombuffer'),
  ('_codecs', 'encode'),
  ('collections', 'OrderedDict'),
  ('builtins', 'bytes'),
}


def first_line(e: BaseException) -> str:
  """The first line of an exception's message."""
  return (str(e).splitlines() or [type(e).__name__])[0]


@contextlib.contextmanager
def reading(where: object) -> Iterator[None]:
  """Converts any exception while reading `where` to a `UserError`."""
  try:
    yield
  except UserError:
    raise
  except FileNotFoundError as e:
    raise UserError(f'{where}: does not exist') from e
  except Exception as e:  # Parsers and codecs raise all kinds.
    raise UserError(f'{where}: is corrupt ({type(e).__name__}: {first_line(e)})') from e


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[BinaryIO]:
  """A binary file for reading, unpacked if it is gzipped; `UserError` as `reading`."""
  with reading(path), path.open('rb') as file:
    zipped = file.read(2) == b'\x1f\x8b'
    file.seek(0)
    yield gzip.GzipFile(fileobj=file) if zipped else file  # type: ignore[misc]


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of an .npz file; `UserError` if it is damaged or holds objects."""
  with reading(path), np.load(path, allow_pickle=False) as arrays:
    return {name: arrays[name] for name in arrays.files}


# Python's own, as the one in C allocates as much memory as a damaged memo asks for.
class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]
  """Makes numbers, text, lists, dicts and arrays, and refuses everything else."""

  def find_class(self, module: str, name: str) -> Any:
    module = module.replace('numpy.core', 'numpy._core')
    module = module.replace('__builtin__', 'builtins')
    if (module, name) not in _ALLOWED:
      raise pickle.UnpicklingError(f'{module}.{name} is not allowed')
    return getattr(importlib.import_module(module), name)


def read_pickle(path: pathlib.Path) -> Any:
  """The content of a pickle of numbers, text, lists, dicts and arrays.

  Raises `UserError` if the file is damaged or holds other objects.
  """
  with opened(path) as file:
    return _Unpickler(file, encoding='latin1').load()


def read_npy(raw: bytes, where: object) -> Any:
  """The object that an .npy file holds, such as a dict; see `read_pickle`."""
  file = io.BytesIO(raw)
  with reading(where):
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    return _Unpickler(file, encoding='latin1').load()[()]
