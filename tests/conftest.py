"""Every test sees two CPU devices and strict array promotion."""

import gc
import importlib.metadata
import os
import pathlib
import sys

# Compiling is most of the tests' time, and five times faster without optimization.
# FESEM_TEST_OPTIMIZED=1 compiles as users do; `make test` runs the numerical tests so.
_FAST = '--xla_backend_optimization_level=0'
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  # JAX 0.12 dies of flags that it does not know. The other core has tests of its own.
  _FAST += ' --xla_cpu_use_fusion_emitters=false'
  _FAST += ' --xla_cpu_parallel_codegen_split_count=1'
if not os.environ.get('FESEM_TEST_OPTIMIZED'):
  os.environ['XLA_FLAGS'] = f'{_FAST} {os.environ.get("XLA_FLAGS", "")}'

import jax  # noqa: E402 - it reads the flags above.
import pytest  # noqa: E402

from fesem_jax.utils.errors import warn_once  # noqa: E402

jax.config.update('jax_num_cpu_devices', 2)
jax.config.update('jax_numpy_rank_promotion', 'raise')

# Programs without the lines of Python that made them are lowered and compiled faster.
jax.config.update('jax_traceback_in_locations_limit', 0)

# Tracing makes objects by the million, of which few are garbage that only cycles hold.
gc.set_threshold(1_000_000, 20, 100)

# Many tests compile the same programs.
_CACHE = pathlib.Path(__file__).parent.parent / '.pytest_cache' / 'xla'
jax.config.update('jax_compilation_cache_dir', str(_CACHE))
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


# Each program has some parts of memory of its own, and Linux gives a process 65,530.
_MAPS, _MOST_MAPS = pathlib.Path('/proc/self/maps'), 25_000


def pytest_collection_modifyitems(items):
  """Begins with the tests that wait for other processes, which then run meanwhile.

  An idle worker takes over the end of the list, and would start them once more.
  """
  items.sort(key=lambda item: item.path.name != 'processes_test.py')
  gc.freeze()  # What was imported stays, and is not looked through again.


@pytest.fixture(autouse=True, scope='module')
def _forget_programs():
  """Frees the programs of tests that are done before a process can hold no more."""
  yield
  if not _MAPS.exists() or _MAPS.read_bytes().count(b'\n') > _MOST_MAPS:
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _close_figures():
  """Leaves no figure to the tests after it: Matplotlib holds those of a process."""
  yield
  if pyplot := sys.modules.get('matplotlib.pyplot'):
    pyplot.close('all')


@pytest.fixture(scope='session')
def real_data() -> pathlib.Path:
  """The folder of real data; skips where the environment names none."""
  folder = os.environ.get('FESEM_DATA_DIR')
  if not folder or not pathlib.Path(folder).is_dir():
    pytest.skip('FESEM_DATA_DIR does not name a folder of real data')
  return pathlib.Path(folder)


@pytest.fixture(autouse=True)
def _forget_warnings():
  """Lets each test see the warnings that a process says once."""
  warn_once.cache_clear()
