"""Every test sees two CPU devices and strict array promotion."""

import gc
import importlib.metadata
import os
import pathlib

# Compiling is most of the tests' time, and five times faster without optimization.
# FESEM_TEST_OPTIMIZED=1 compiles as users do; `make test` runs the numerical tests
# so, and the tests of the binaries always run them as users do.
_FAST = '--xla_backend_optimization_level=0'
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  _FAST += ' --xla_cpu_use_fusion_emitters=false'  # JAX 0.12 dies of unknown flags.
if not os.environ.get('FESEM_TEST_OPTIMIZED'):
  os.environ['XLA_FLAGS'] = f'{_FAST} {os.environ.get("XLA_FLAGS", "")}'

import jax  # noqa: E402 - it reads the flags above.
import pytest  # noqa: E402

jax.config.update('jax_num_cpu_devices', 2)
jax.config.update('jax_numpy_rank_promotion', 'raise')

# Tracing makes objects by the million, of which few are garbage that only cycles hold.
gc.set_threshold(200_000, 20, 100)

# Many tests compile the same programs.
_CACHE = pathlib.Path(__file__).parent.parent / '.pytest_cache' / 'xla'
jax.config.update('jax_compilation_cache_dir', str(_CACHE))
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


@pytest.fixture(autouse=True, scope='module')
def _forget_programs():
  """Frees the programs of a module's tests: a process may hold so many, then dies."""
  yield
  jax.clear_caches()


@pytest.fixture(scope='session')
def real_data() -> pathlib.Path:
  """The folder of real data; skips where the environment names none."""
  folder = os.environ.get('FESEM_DATA_DIR')
  if not folder or not pathlib.Path(folder).is_dir():
    pytest.skip('FESEM_DATA_DIR does not name a folder of real data')
  return pathlib.Path(folder)
