"""One model as a file that other programs read: safetensors, or Flax's bytes."""

import importlib.util
import pathlib

import flax.serialization
import numpy as np

from fesem_jax.core.types import Params
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import UserError, argument

SUFFIXES = ('.safetensors', '.msgpack')


def check(path: pathlib.Path) -> None:
  """Raises `UserError` unless files of this ending can be written."""
  if path.suffix not in SUFFIXES:
    raise UserError(f'{argument("path", path)} must end in .safetensors or .msgpack.')
  if path.suffix == '.safetensors' and importlib.util.find_spec('safetensors') is None:
    raise UserError(
      "Files of .safetensors need the package: pip install 'fesem_jax[export]'; "
      '.msgpack needs nothing more.'
    )


def write(
  path: pathlib.Path,
  params: Params,
  layers: dict[str, np.ndarray],
  about: dict[str, str],
) -> None:
  """Writes one model in the format that the ending of the path names.

  Args:
    path: ends in one of `SUFFIXES`.
    params: the model.
    layers: the same, path of each layer as `dense0/kernel` -> its array.
    about: metadata of the file (safetensors only).
  """
  check(path)
  if path.suffix == '.safetensors':
    from safetensors import numpy as safetensors  # An optional dependency.

    named = {p.replace('/', '.'): np.ascontiguousarray(x) for p, x in layers.items()}
    content = safetensors.save(named, metadata={'format': 'flax'} | about)
  else:
    content = flax.serialization.to_bytes(params)
  with replacing(path) as file:
    file.write(content)
