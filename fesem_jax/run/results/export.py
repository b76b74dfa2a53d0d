"""One model as a file that other programs read, and such files of other programs."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fesem_jax.utils.atomic_files import replacing, write_arrays_atomically
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import read_npz, reading


def _check_ending(path: pathlib.Path) -> None:
  is_readable = path.suffix in ('.npz', '.safetensors')
  check(is_readable, f'{path}: unknown ending; use .npz or .safetensors')


def write(
  path: pathlib.Path, layers: dict[str, np.ndarray], about: Mapping[str, Any]
) -> None:
  """Writes the layers of a model by path; `about` is metadata of safetensors."""
  _check_ending(path)
  if path.suffix == '.npz':
    write_arrays_atomically(path, layers)
    return
  from safetensors import numpy as safetensors  # An optional dependency.

  named = {p.replace('/', '.'): np.ascontiguousarray(x) for p, x in layers.items()}
  texts = {name: json.dumps(value) for name, value in about.items()}
  with replacing(path) as file:
    file.write(safetensors.save(named, metadata={'format': 'flax'} | texts))


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a file by path, as dense0/kernel; dots count as slashes."""
  _check_ending(path)
  with reading(path):
    if path.suffix == '.npz':
      arrays = read_npz(path)
    else:
      from safetensors import numpy as safetensors  # An optional dependency.

      arrays = safetensors.load(path.read_bytes())
  return {name.replace('.', '/'): x for name, x in arrays.items()}
