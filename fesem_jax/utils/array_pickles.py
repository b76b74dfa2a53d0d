"""Pickles of arrays, which other frameworks write, read without running their code."""

import importlib
import io
import pathlib
import pickle
from typing import Any

import numpy as np

from fesem_jax.utils.safe_files import opened, reading

# What a pickle may call.
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


# Python's own, as the one in C allocates as much memory as a damaged memo asks for.
class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]
  """Makes numbers, text, lists, dicts and arrays, and refuses everything else."""

  def find_class(self, module: str, name: str) -> Any:
    module = module.replace('numpy.core', 'numpy._core').replace(
      '__builtin__', 'builtins'
    )
    if (module, name) not in _ALLOWED:
      raise pickle.UnpicklingError(f'{module}.{name} is no array; it is refused')
    return getattr(importlib.import_module(module), name)


def _loads(raw: bytes, where: object) -> Any:
  with reading(where):
    return _Unpickler(io.BytesIO(raw), encoding='latin1').load()


def read_pickle(path: pathlib.Path) -> Any:
  """The content of a pickle of numbers, text, lists, dicts and arrays.

  Raises `UserError` if the file is damaged or holds other objects, which are never
  made.
  """
  with opened(path) as file:
    return _loads(file.read(), path)


def read_npy(raw: bytes, where: object) -> Any:
  """The content of an .npy file, which may hold one pickled object.

  Raises `UserError`, naming `where`, as `read_pickle`.
  """
  file = io.BytesIO(raw)
  with reading(where):
    version = np.lib.format.read_magic(file)
    read = {
      (1, 0): np.lib.format.read_array_header_1_0,
      (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = read(file)
    if not dtype.hasobject:
      return np.load(io.BytesIO(raw), allow_pickle=False)
    return np.asarray(_loads(file.read(), where)).reshape(shape)[()]
