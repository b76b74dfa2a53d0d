"""Compiled programs are shared where they may be, and only there."""

import gc

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.run import programs
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.runs import assert_same_state, simulate

SIZES = [6, 3, 9, 5, 8, 4, 7]
X = np.ones(4, np.float32)


@pytest.fixture(autouse=True)
def empty():
  programs.clear()


def data_of(count, seed=0, **changes):
  """As many examples for each seed, but others."""
  return helpers.federation([4] * count, seed=seed, **changes)


def traced_once(fn):
  """`fn`, which fails when it is traced again."""
  chex.clear_trace_counter()
  return chex.assert_max_traces(fn, n=1)


@pytest.mark.parametrize('identical', [False, True])
def test_options_are_those_of_the_compiler(identical, monkeypatch):
  monkeypatch.delenv('XLA_FLAGS', raising=False)  # That of tests wins.
  monkeypatch.setattr(sharding, 'is_identical', identical)
  options = programs.with_passes(1, few=True, many=True)
  assert jax.jit(jnp.sum, **options)(X) == 4
  has_option = jax.__version_info__ < (0, 11)  # Bits of devices differ without it.
  assert ('fusion_emitters' in str(options)) == (has_option and not identical)


def test_seeds_share_a_program_of_their_data():
  total = traced_once(lambda data: data.x.sum() * data.scale)
  for data in [data_of(3, seed) for seed in range(2)]:
    program = programs.compiled('the total', 'key', lambda data: total(data), data)
    np.testing.assert_allclose(program(data), data.x.sum(), rtol=1e-5)


@pytest.mark.parametrize(
  ('first', 'second'),
  [
    ((X,), (np.ones(5, np.float32),)),
    ((X,), (X.astype(np.int32),)),
    ((X, X), ((X, X),)),
    (({'a': X},), ({'b': X},)),
    ((data_of(3),), (data_of(4),)),
    ((data_of(3),), (data_of(3, classes=4),)),
    ((1.0,), (1,)),
  ],
  ids=['length', 'dtype', 'nesting', 'names', 'clients', 'static', 'numbers'],
)
def test_other_arguments_are_made_for_anew(first, second):
  made = []
  for args in (first, second, first):
    programs.once('key', lambda args=args: made.append(args) or len(made), *args)
  assert len(made) == 2


def test_settings_of_jax_are_part_of_what_is_shared():
  args = 'the square', 'key', lambda x: x @ x, np.ones((3, 3), np.float32)
  plain = programs.compiled(*args)
  with jax.default_matmul_precision('highest'):
    exact = programs.compiled(*args)
  assert 'highest' in exact.compiled.as_text()
  assert 'highest' not in plain.compiled.as_text()
  assert programs.compiled(*args) is plain


def test_a_program_that_failed_is_compiled_again(monkeypatch):
  def fail(*_):
    raise UserError('too large')

  args = 'the double', 'key', lambda x: 2 * x, X
  with monkeypatch.context() as patched:
    patched.setattr(programs, 'compile_to_fit', fail)
    for _ in range(2):
      with pytest.raises(UserError, match='too large'):
        _ = programs.compiled(*args).compiled
  np.testing.assert_array_equal(programs.compiled(*args)(X), 2)


def run_of(algorithm, sizes=SIZES, seed=0, **options):
  data = [helpers.federation(sizes, seed=10 + seed + part) for part in (0, 100)]
  options = {'rounds': 2, 'seed': seed, 'progress': False} | options
  return simulate(algorithm, *data, **options)


@pytest.fixture
def lowered():
  """Programs that JAX lowers and compiles meanwhile, by event."""
  events = []

  def listen(event, seconds, **_):
    if event.endswith(('backend_compile_duration', 'to_mlir_module_duration')):
      events.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  yield events
  jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
def test_runs_of_a_process_share_programs(lowered):
  """Also with `between`, and after data of other shapes."""
  algorithm = algorithms.build('fed_cluster', helpers.local(hidden=()), eps1=1.0)
  result, counts = run_of(algorithm), {'first': len(lowered)}
  for call, sizes in (('other shapes', [5, 9, 4, 3]), ('again', SIZES)):
    lowered.clear()
    again = run_of(algorithm, sizes)
    counts[call] = len(lowered)
  assert min(counts['first'], counts['other shapes']) > 0
  assert counts['again'] == 0
  assert_same_state(result.state, again.state)
  assert result.summary['deployed'] == again.summary['deployed']


def test_shared_programs_hold_no_data_and_no_states():
  algorithm = algorithms.build('fed_avg', helpers.local(hidden=()))
  once = [traced_once(fn) for fn in (algorithm.init, algorithm.step)]
  algorithm = algorithm._replace(init=once[0], step=once[1])
  gc.collect()
  before = {id(x) for x in jax.live_arrays()}
  for seed in range(2):  # The check of the method and its programs share a trace.
    _ = run_of(algorithm, seed=seed).deployed
  gc.collect()
  left = [x.shape for x in jax.live_arrays() if id(x) not in before and x.size > 1]
  assert not left
