"""Pickles of arrays, which other frameworks write, read without running their code."""

import io
import pathlib
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import BoundedReader, reading


class _Dtype:
  """A NumPy dtype under construction; only plain ones and objects are made."""

  def __init__(self, code: Any, *_: Any):
    self._code = code.decode() if isinstance(code, bytes) else code
    self._order: Any = '='

  def __setstate__(self, state: tuple[Any, ...]) -> None:
    order = state[1]
    self._order = order.decode() if isinstance(order, bytes) else order

  def made(self) -> np.dtype:
    found = np.dtype(self._code)
    if found.kind not in 'biufSUO' or found.names or found.subdtype:
      raise ValueError(f'arrays of {found} are not read')
    return found if self._order in '=|' else found.newbyteorder(self._order)


class _Array:
  """A NumPy array under construction, which its state fills."""

  def __init__(self, *_: Any):
    self.values = np.zeros(0)

  def __setstate__(self, state: tuple[Any, ...]) -> None:
    _, shape, dtype, fortran, content = state
    self.values = _filled(content, dtype, shape, 'F' if fortran else 'C')


def _filled(content: Any, dtype: _Dtype, shape: Any, order: str = 'C') -> np.ndarray:
  made = dtype.made()
  if made.kind == 'O':
    flat = np.empty(len(content), object)
    for i, value in enumerate(content):  # `flat[:]` would unfold nested lists.
      flat[i] = value
    return flat.reshape(shape, order=order)  # type: ignore[call-overload]
  if isinstance(content, str):  # Python 2's, read as Latin-1.
    content = content.encode('latin1')
  return np.frombuffer(content, made).reshape(shape, order=order)  # type: ignore[call-overload]


def _from_buffer(content: Any, dtype: _Dtype, shape: Any, order: str) -> _Array:
  array = _Array()
  array.values = _filled(content, dtype, shape, order)
  return array


# What may be called, by its name in pickles, and what is called in its place.
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
  ('numpy', 'ndarray'): _Array,
  ('numpy', 'dtype'): _Dtype,
  ('_codecs', 'encode'): lambda text, encoding='latin1': str.encode(text, 'latin1'),
  ('collections', 'OrderedDict'): OrderedDict,
  ('__builtin__', 'bytes'): lambda: b'',
  ('builtins', 'bytes'): lambda: b'',
}
for _core in ('numpy.core', 'numpy._core'):
  _ALLOWED[f'{_core}.multiarray', '_reconstruct'] = lambda *_: _Array()
  _ALLOWED[f'{_core}.multiarray', 'scalar'] = lambda dtype, raw: _filled(
    raw, dtype, ()
  ).item()
  _ALLOWED[f'{_core}.numeric', '_frombuffer'] = _from_buffer


# Python's own, as the one in C allocates as much memory as a damaged memo asks for.
class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]
  """Makes numbers, text, lists, dicts and arrays, and refuses everything else."""

  stack: list[Any]

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) not in _ALLOWED:
      raise UserError(f'an object {module}.{name}, which is no array; it is refused.')
    return _ALLOWED[module, name]

  def persistent_load(self, pid: Any) -> NoReturn:
    raise UserError('a reference to another file; it is refused.')

  def load_build(self) -> None:
    # Others, such as the functions allowed above, are shared by all pickles.
    if not isinstance(self.stack[-2], _Array | _Dtype):
      raise UserError('the state of an object that is no array; it is refused.')
    super().load_build()  # type: ignore[misc]

  def load_bytearray8(self) -> None:
    # Python's allocates as many bytes as the file announces.
    self.load_binbytes8()  # type: ignore[attr-defined]
    self.stack[-1] = bytearray(self.stack[-1])

  dispatch = pickle._Unpickler.dispatch | {  # type: ignore[assignment]
    pickle.BUILD[0]: load_build,
    pickle.BYTEARRAY8[0]: load_bytearray8,
  }


def _loads(raw: bytes, where: object) -> Any:
  with reading(where):
    try:
      return _Unpickler(io.BytesIO(raw), encoding='latin1').load()
    except UserError as e:
      raise UserError(f'{where} holds {e}') from e


def read_pickle(path: pathlib.Path) -> Any:
  """The content of a pickle of numbers, text, lists, dicts and arrays.

  Arrays in it are read by `array_of`. Raises `UserError` if the file is damaged or
  holds other objects, which are never made.
  """
  with BoundedReader(path) as file:
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
    held = array_of(_loads(file.read(), where))
    return held.reshape(shape)[()]


def array_of(value: Any) -> np.ndarray:
  """An array, or a list of numbers or arrays, of a pickle as an array.

  Raises `ValueError` on others, such as lists of lists: a few bytes of a pickle may
  nest one list in another so often that no memory holds the array.
  """
  if isinstance(value, _Array):
    return value.values
  if isinstance(value, list | tuple):
    arrays = [id(v) for v in value if isinstance(v, _Array)]
    nested = any(isinstance(v, list | tuple) for v in value)
    if nested or len(set(arrays)) < len(arrays):
      raise ValueError('a list of lists, or twice of one array, in place of an array')
    held = [v.values if isinstance(v, _Array) else v for v in value]
    return np.asarray(held)
  if isinstance(value, np.ndarray):
    return value
  raise ValueError(f'{type(value).__name__} in place of an array')
