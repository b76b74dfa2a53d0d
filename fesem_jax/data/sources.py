"""Data sets by name: `read` calls the function that an expression names."""

import functools
import importlib
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from fesem_jax.core import prng_streams
from fesem_jax.data import images, leaf, libraries, own_files, synthetic, text, tff
from fesem_jax.data.expressions import build, split_call
from fesem_jax.data.partitions.partition import with_test
from fesem_jax.data.pool import Pool, from_arrays
from fesem_jax.data.reading import Request

# A function gets a `Request` and options, and returns a `Pool` or, as a dict, the
# arguments of `from_arrays`.
SOURCES: dict[str, Callable[..., Any]] = {
  function.__name__: function
  for function in (
    libraries.digits, libraries.diabetes, images.mnist, images.fashion_mnist,
    images.emnist, images.mnist_writers, images.cifar10, images.cifar100, leaf.femnist,
    leaf.celeba, text.shakespeare, tff.stackoverflow, synthetic.synthetic,
    synthetic.synthetic_linear, synthetic.synthetic_mixture, leaf.leaf, own_files.npz,
    own_files.table, libraries.images, libraries.hub, libraries.tfds, text.text,
    own_files.pfllib, own_files.saved,
  )
}  # fmt: skip


@functools.cache
def user_function(name: str) -> Callable[..., Any]:
  """Imports MODULE:FUNCTION, with the current directory on the path."""
  module, _, function = name.partition(':')
  if not {'', os.getcwd()} & set(sys.path):  # Absent where a script was started.
    sys.path.insert(0, os.getcwd())
  return getattr(importlib.import_module(module), function)


def read(
  dataset: str,
  data_dir: str | os.PathLike[str] = '',
  *,
  seed: int = 0,
  num_clients: int = 0,
  examples_per_client: int = 0,
  task: str = '',
) -> Pool:
  """Reads or generates a data set.

  Args:
    dataset: an expression of `SOURCES`, e.g. 'hub(me/mine, client=user)', or of a
      user's MODULE:FUNCTION, which returns a pool or a dict of arguments of
      `from_arrays`.
    data_dir: folder of all data; '' is the environment's FESEM_DATA_DIR, or data.
    seed: of generated data, and of draws of users.
    num_clients: M of generated data; 0 is 100.
    examples_per_client: training examples of each generated client; 0 is the default.
    task: a key of `tasks.TASKS`; '' takes that of the data.

  Raises:
    UserError: naming the argument or file at fault.
  """
  folder = pathlib.Path(data_dir or os.environ.get('FESEM_DATA_DIR', '') or 'data')
  rng = prng_streams.host_rng(seed, prng_streams.GENERATE)
  examples = with_test(examples_per_client)
  request = Request(folder, rng, num_clients or 100, examples, task)
  kinds: dict[str, Callable[..., Any]] = {
    name: functools.partial(f, request) for name, f in SOURCES.items()
  }
  name, _ = split_call(dataset)
  if ':' in name:
    kinds[name] = user_function(name)
  (arrays,) = build(dataset, kinds, 'dataset')
  if isinstance(arrays, Pool):
    return arrays
  return from_arrays(**{**arrays, **({'task': task} if task else {})})
