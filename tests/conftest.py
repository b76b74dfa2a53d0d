"""Every test sees two CPU devices and strict array promotion."""

import os
import pathlib

import jax
import pytest

jax.config.update('jax_num_cpu_devices', 2)
jax.config.update('jax_numpy_rank_promotion', 'raise')

# Many tests compile the same programs; compiling is most of their time.
_CACHE = pathlib.Path(__file__).parent.parent / '.pytest_cache' / 'xla'
jax.config.update('jax_compilation_cache_dir', str(_CACHE))
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


@pytest.fixture(scope='session')
def real_data() -> pathlib.Path:
  """The folder of real data; skips where the environment names none."""
  folder = os.environ.get('FESEM_DATA_DIR')
  if not folder or not pathlib.Path(folder).is_dir():
    pytest.skip('FESEM_DATA_DIR does not name a folder of real data')
  return pathlib.Path(folder)
