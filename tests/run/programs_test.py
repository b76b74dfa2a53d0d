"""Compiled programs are shared where they may be, and only there."""

import gc
import threading

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fesem_jax import algorithms
from fesem_jax.core import sharding
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.run import programs as programs_module
from fesem_jax.run.programs import (
  CompileTime,
  Programs,
  run_often,
  run_once,
  wait_for,
  with_passes,
)
from fesem_jax.run.traced import Traced
from fesem_jax.utils.errors import UserError
from tests.support import helpers
from tests.support.runs import assert_same_state, simulate

SIZES = [6, 3, 9, 5, 8, 4, 7]


def data_of(count, seed=0, **changes):
  """As many examples for each seed, but others."""
  return helpers.federation([4] * count, seed=seed, **changes)


def traced_once(fn):
  """`fn`, which fails when it is traced again."""
  chex.clear_trace_counter()
  return chex.assert_max_traces(fn, n=1)


def split(x, mesh, *axes):
  spec = jax.sharding.PartitionSpec(*axes)
  return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))


def test_arguments_of_equal_shapes_share_one_trace():
  programs, square = Programs(), traced_once(lambda x: x * x)
  arrays = [jax.random.normal(jax.random.key(seed), (5,)) for seed in range(3)]
  for x in arrays:  # A new function each time, which JAX itself would trace again.
    program = programs.compiled('square', lambda x: square(x), x)
    np.testing.assert_array_equal(program(x), np.asarray(x) ** 2)


def test_seeds_share_a_program_of_their_data():
  programs, total = Programs(), traced_once(lambda data: data.x.sum() * data.scale)
  for data in [data_of(3, seed) for seed in range(2)]:
    program = programs.compiled('total', lambda data: total(data), data)
    np.testing.assert_allclose(program(data), data.x.sum(), rtol=1e-5)


X = np.ones(4, np.float32)


@pytest.mark.parametrize(
  ('first', 'second'),
  [
    ((X,), (np.ones(5, np.float32),)),
    ((X,), (X.reshape(2, 2),)),
    ((X,), (X.astype(np.int32),)),
    ((X,), (X, X)),
    ((X, X), ((X, X),)),
    (({'a': X},), ({'b': X},)),
    ((X, None), (None, X)),
    ((data_of(3),), (data_of(4),)),
    ((data_of(3),), (data_of(3, classes=4),)),
  ],
  ids=[
    'length', 'axes', 'dtype', 'number', 'nesting', 'names', 'none', 'clients',
    'static',
  ],
)  # fmt: skip
def test_other_arguments_are_made_for_anew(first, second):
  programs, made = Programs(), []
  for args in (first, second, first):
    programs.once('key', lambda args=args: made.append(args) or len(made), *args)
  assert len(made) == 2


def test_other_keys_are_made_for_anew():
  programs = Programs()
  one, two = object(), object()
  assert programs.once(('key', one), lambda: 'one', X) == 'one'
  assert programs.once(('key', two), lambda: 'two', X) == 'two'
  assert programs.once(('key', one), lambda: 'three', X) == 'one'
  assert Programs().once(('key', one), lambda: 'four', X) == 'four'


def test_what_was_used_least_recently_is_let_go_of_first():
  programs, made = Programs(most=2), []
  for key in ('a', 'b', 'a', 'c', 'a', 'b'):
    assert programs.once(key, lambda key=key: made.append(key) or key) == key
  assert made == ['a', 'b', 'c', 'b']
  for n in range(5):
    held = programs.compiled('add', lambda x, n=n: x + n, np.ones(n + 1, np.float32))
    assert programs.count <= 2
  programs.clear()
  del held
  assert programs.count == 0


def test_programs_of_a_long_comparison_are_let_go_of():
  programs, made = Programs(), []
  for key in [*range(500), 499, 0]:
    programs.once(key, lambda key=key: made.append(key) or key)
  assert made == [*range(500), 0]


def test_settings_of_jax_are_part_of_what_is_shared():
  programs, x = Programs(), np.ones((3, 3), np.float32)
  plain = programs.compiled('square', lambda x: x @ x, x)
  with jax.default_matmul_precision('highest'):
    exact = programs.compiled('square', lambda x: x @ x, x)
  assert 'highest' in exact.compiled.as_text()
  assert 'highest' not in plain.compiled.as_text()
  assert programs.compiled('square', lambda x: x @ x, x) is plain


def test_options_of_the_compiler_are_part_of_what_is_shared():
  programs, x = Programs(), np.ones((3, 3), np.float32)
  plain, fast, again = (
    programs.compiled('square', lambda x: x @ x, x, compiler_options=options)
    for options in (None, {'xla_backend_optimization_level': 0}, None)
  )
  assert again is plain
  assert fast.compiled is not plain.compiled


def test_a_program_that_failed_is_compiled_again(monkeypatch):
  programs = Programs()

  def fail(*_):
    raise UserError('too large')

  with monkeypatch.context() as patched:
    patched.setattr(programs_module, 'compile_to_fit', fail)
    for _ in range(2):
      with pytest.raises(UserError, match='too large'):
        programs.compiled('double', lambda x: 2 * x, X)
  np.testing.assert_array_equal(programs.compiled('double', lambda x: 2 * x, X)(X), 2)


def test_what_is_falsy_is_held_too():
  programs, made = Programs(), []
  for _ in range(2):
    assert programs.once('key', lambda: made.append(1)) is None
  assert made == [1]


def test_other_places_are_compiled_for_anew():
  programs, mesh = Programs(), sharding.client_mesh(2)
  whole, halved = split(X, mesh), split(X, mesh, sharding.CLIENTS)
  alone = sharding.replicate(X, sharding.client_mesh(1))
  compiled = [
    programs.compiled('double', lambda x: 2 * x, x) for x in (whole, halved, alone, X)
  ]
  assert len(set(map(id, compiled))) == 4
  for x, program in zip((whole, halved, alone), compiled, strict=False):
    np.testing.assert_array_equal(program(x), 2 * X)
    assert program.compiled.input_shardings[0][0].is_equivalent_to(x.sharding, 1)
  again = programs.compiled('double', lambda x: 2 * x, split(X + 1, mesh))
  assert again is compiled[0]


def test_a_program_refuses_other_shapes_instead_of_compiling_again():
  program = Programs().compiled('double', traced_once(lambda x: 2 * x), X)
  with pytest.raises(TypeError, match='compiled'):
    program(np.ones(5, np.float32))


def test_options_reach_the_compiler():
  mesh = sharding.client_mesh(2)
  x = split(X, mesh)
  halves = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('clients'))
  program = Programs().compiled('double', lambda x: 2 * x, x, out_shardings=halves)
  assert program(x).sharding.is_equivalent_to(halves, 1)
  kept = jnp.asarray(X)
  Programs().compiled('double', lambda x: 2 * x, kept, donate_argnums=0)(kept)
  assert kept.is_deleted()


def test_programs_compile_at_once_and_the_first_that_fails_says_so(monkeypatch):
  both, compile_to_fit = threading.Barrier(2), programs_module.compile_to_fit

  def together(lowered, args, what):
    both.wait(timeout=60)
    if what == 'the start':
      raise UserError('too large')
    return compile_to_fit(lowered, args, what)

  monkeypatch.setattr(programs_module, 'compile_to_fit', together)
  monkeypatch.setattr(programs_module, '_AT_ONCE', 2)
  programs = Programs()
  with jax.default_matmul_precision('highest'):  # The caller's settings hold.
    double, square = (
      programs.compiled(key, fn, np.ones((3, 3), np.float32), wait=False)
      for key, fn in (('double', lambda x: 2 * x), ('square', lambda x: x @ x))
    )
  assert wait_for(double, square) == (double, square)
  assert double(2 * np.ones((3, 3), np.float32))[0, 0] == 4
  assert 'highest' in square.compiled.as_text()
  fails, sound = (
    programs.compiled(key, lambda x, n=n: x + n, X, wait=False)
    for n, key in enumerate(('init', 'step'))
  )
  with pytest.raises(UserError, match='too large'):
    wait_for(fails, sound)
  np.testing.assert_array_equal(sound(X), X + 1)


def test_small_starts_are_compiled_without_optimization(monkeypatch):
  data = helpers.federation([6, 3, 9])
  assert run_once(helpers.local(), data) == {}  # XLA_FLAGS says how tests compile.
  monkeypatch.setenv('XLA_FLAGS', '')

  def level(local, data):
    (found,) = run_once(local, data)['compiler_options'].values()
    return found

  assert level(helpers.local(), data) == 0
  # 18 examples of 6 numbers; models of 9 and 25 M.
  assert level(helpers.local(hidden=(3000, 3000)), data) == 0
  found = run_once(helpers.local(hidden=(3000, 3000)), data, runs=3)
  assert found == with_passes(1, many=True)
  emitters = found['compiler_options'].pop('xla_cpu_use_fusion_emitters', None)
  known = jax.__version__.startswith('0.10.')  # JAX 0.12 has no such option.
  assert emitters is (False if known else None)
  assert found == with_passes(1)
  small = helpers.local()
  assert run_often(small, data, 100) == with_passes(1, many=True)
  assert run_often(small, data, 10**9) == with_passes(1)
  assert level(helpers.local(hidden=(5000, 5000)), data) == 1
  images = helpers.federation([6, 3, 9], shape=(8, 8))
  assert level(helpers.local(shape=(8, 8), model='small_cnn'), images) == 1


def test_compile_time_counts_once_what_happens_at_once():
  def record(event, seconds):
    jax.monitoring.record_event_duration_secs(event, seconds)

  with CompileTime() as time:
    assert time.seconds() == 0
    record('/jax/core/compile/backend_compile_duration', 5.0)
    record('/jax/core/compile/jaxpr_trace_duration', 7.0)
    record('/jax/core/compile/jaxpr_trace_duration', 3.0)
    record('/jax/another', 1000.0)
  record('/jax/core/compile/backend_compile_duration', 1000.0)
  assert 7 <= time.seconds() < 10


def test_names_and_true_clusters_of_clients_are_no_part_of_a_program():
  names = np.array(['a', 'b'])
  assert ClientInfo(names) == ClientInfo(names[::-1], np.array([0, 1]))
  assert ClientInfo(names) != ClientInfo(names[:1])
  assert hash(ClientInfo(names)) == hash(ClientInfo(names[::-1]))


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
  programs_module.shared().clear()
  run_of(algorithm)
  counts = {'first': len(lowered)}
  for call, sizes, seed in (('other shapes', [5, 9, 4, 3], 0), ('again', SIZES, 1)):
    lowered.clear()
    found = run_of(algorithm, sizes, seed)
    counts[call] = len(lowered)
    alone = run_of(algorithm, sizes, seed, programs=Programs())
    assert_same_state(found.state, alone.state)
    for part in ('deployed', 'finetuned', 'clusters'):
      assert found.summary[part] == alone.summary[part]
  assert min(counts['first'], counts['other shapes']) > 0
  assert counts['again'] == 0


@pytest.mark.nightly
def test_shared_programs_hold_no_data_and_no_states():
  algorithm = algorithms.build('fed_avg', helpers.local(hidden=()))
  once = [traced_once(fn) for fn in (algorithm.init, algorithm.step)]
  algorithm = algorithm._replace(init=once[0], step=once[1])
  programs_module.shared().clear()
  run_of(algorithm)  # The check of the method and its programs share a trace.
  gc.collect()
  before = {id(x) for x in jax.live_arrays()}
  run_of(algorithm, seed=1)
  gc.collect()
  left = [x.shape for x in jax.live_arrays() if id(x) not in before and x.size > 1]
  assert programs_module.shared().count > 0
  assert not left


def test_functions_of_the_host_are_not_shared():
  def loss(rate, programs, seed=0):
    def schedule(number):
      shape = jax.ShapeDtypeStruct((), np.float32)
      return jax.pure_callback(lambda n: np.float32(rate), shape, number)

    local = helpers.local(model='logistic')._replace(lr_schedule=schedule)
    method = algorithms.build('fed_avg', local)
    data = data_of(2)
    options = {'programs': programs, 'progress': False, 'finetune_epochs': 0}
    found = simulate(method, data, data, rounds=2, seed=seed, **options)
    return found.history[-1]['train_loss']

  together = Programs()
  assert loss(1.0, together) == loss(1.0, Programs())
  assert loss(0.01, together) == loss(0.01, Programs()) != loss(1.0, Programs())


def test_traces_that_call_other_functions_of_the_host_have_other_digests():
  def traced(value):
    shape = jax.ShapeDtypeStruct((), np.float32)
    return Traced.of(lambda x: jax.pure_callback(lambda _: value, shape, x), 1.0)

  both = [traced(np.float32(value)) for value in (1, 2)]  # Alive at the same time.
  assert both[0].digest != both[1].digest
  assert (
    Traced.of(lambda x: 2 * x, 1.0).digest == Traced.of(lambda x: 2 * x, 1.0).digest
  )
