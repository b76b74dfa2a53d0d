"""One model as a file that other programs read: safetensors, or Flax's bytes.

Such files, and NumPy's .npz, are read back too, whoever wrote them.
"""

import pathlib

import flax.serialization
import numpy as np
from flax.traverse_util import flatten_dict

from fesem_jax.core.types import Params
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import check
from fesem_jax.utils.safe_files import read_npz, reading


def write(
  path: pathlib.Path,
  params: Params,
  layers: dict[str, np.ndarray],
  about: dict[str, str],
) -> None:
  """Writes one model in the format that the path's ending names.

  `layers` is the same model as `params`, path of each layer as `dense0/kernel` -> its
  array. `about` is metadata of the file (safetensors only).
  """
  check(path.suffix in ('.safetensors', '.msgpack'), f'path: unknown ending of {path}')
  if path.suffix == '.safetensors':
    from safetensors import numpy as safetensors  # An optional dependency.

    named = {p.replace('/', '.'): np.ascontiguousarray(x) for p, x in layers.items()}
    content = safetensors.save(named, metadata={'format': 'flax'} | about)
  else:
    content = flax.serialization.to_bytes(params)
  with replacing(path) as file:
    file.write(content)


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a file, by their paths, as dense0/kernel; dots count as slashes.

  The path ends in `.safetensors`, `.npz`, or otherwise the file has MessagePack: nested
  dicts of arrays. Raises `UserError` if the file is absent or damaged.
  """
  with reading(path):
    if path.suffix == '.npz':
      arrays = read_npz(path)
    elif path.suffix == '.safetensors':
      from safetensors import numpy as safetensors  # An optional dependency.

      arrays = safetensors.load(path.read_bytes())
    else:
      nested = flax.serialization.msgpack_restore(path.read_bytes())
      arrays = flatten_dict(nested, sep='/')
  return {name.replace('.', '/'): x for name, x in arrays.items()}
