"""Compiled programs, kept so that further runs of the same shapes can share them."""

import collections
import functools
import hashlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from fesem_jax.core import sharding, side_by_side
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.run.program_memory import compile_to_fit
from fesem_jax.run.traced import Traced
from fesem_jax.utils import processes, progress_lines

# First of a program's key -> what the program does.
_DESCRIPTIONS: dict[Any, str] = {
  'init': 'the start',
  'step': 'a round',
  'measure': 'the evaluation',
  'assignment': 'the clusters',
  'candidates': 'the losses of candidates',
  'unseen': 'the evaluation of unseen clients',
  'server': 'the evaluation on the test set of the server',
  'portrait': 'the local models for the figures',
}


# Programs that are compiled at once: each takes a core or two and some 350 MiB.
_AT_ONCE = max(1, sharding.cores() // 2)

_EMITTERS = 'xla_cpu_use_fusion_emitters'

# Multiplications that a CPU does sooner, however compiled, than it compiles them well.
_FEW = 2**31

# Likewise of runs side by side, of all rounds, without XLA's emitters: at twice as many
# (FedAvg of 15 runs, 200 rounds, logistic regression) both are level.
_FEW_IN_ROUNDS = 2**36


# What is held at most: a run makes about six programs and shapes, of 30 MiB and 950 of
# the 65,530 mappings of a process for a small model on a CPU. A comparison of thirty
# methods would need all of them, and the compiler ends a process that has none left.
_MOST = 48

# Settings of JAX that change what a function is traced or compiled to.
_SETTINGS = (
  'jax_debug_infs', 'jax_debug_nans', 'jax_default_device',
  'jax_default_matmul_precision', 'jax_default_prng_impl', 'jax_disable_jit',
  'jax_enable_x64', 'jax_numpy_dtype_promotion', 'jax_numpy_rank_promotion',
  'jax_random_seed_offset', 'jax_softmax_custom_jvp', 'jax_threefry_partitionable',
  'jax_traceback_in_locations_limit', 'jax_use_shardy_partitioner',
)  # fmt: skip


def run_once(
  local: LocalTraining, data: FederatedData, runs: int = 1
) -> dict[str, Any]:
  """Options of `jax.jit` for a program that runs once in a run, of several `runs`.

  Without some of LLVM's passes the first clustering takes 30 % less time to compile on
  a CPU, and trains as fast. Without any it takes half of the time, which pays where
  there is little to train and nothing to convolve. What XLA_FLAGS says of them stays.
  """
  many = runs > 1
  if not with_passes(1, many):
    return {}
  few = runs * _multiplications(local, data) < _FEW
  return with_passes(0 if few and not side_by_side.convolves(local) else 1, many)


def run_often(local: LocalTraining, data: FederatedData, rounds: int) -> dict[str, Any]:
  """Options of `jax.jit` for a program of runs side by side, of all their `rounds`."""
  return with_passes(1, rounds * _multiplications(local, data) < _FEW_IN_ROUNDS)


def _multiplications(local: LocalTraining, data: FederatedData) -> int:
  """Bound for a pass over the data: each parameter meets each number of an example."""
  of_example = math.prod(data.example_shape) * side_by_side.parameters(local)
  return of_example * data.y.shape[0]


def with_passes(level: int, many: bool = False) -> dict[str, Any]:
  """Options of `jax.jit` for a program that a CPU compiles with fewer passes of LLVM.

  For `many` runs side by side it is also compiled without XLA's emitters of fused
  operations, which takes half of the time; the program takes half again as long to run.
  Other options may round differently. What XLA_FLAGS says of the level stays.
  """
  name = 'xla_backend_optimization_level'
  if jax.default_backend() != 'cpu' or name in os.environ.get('XLA_FLAGS', ''):
    return {}
  emitters = {_EMITTERS: False} if many and _has_emitters() else {}
  return {'compiler_options': {name: level, **emitters}}


@functools.cache
def _has_emitters() -> bool:
  """Tells if this version of XLA has the option."""
  try:
    jax.jit(lambda x: x, compiler_options={_EMITTERS: False}).lower(0.0).compile()
  except jax.errors.JaxRuntimeError:
    return False
  return True


class Program:
  """A compiled function, with the numbers that it reads besides its arguments.

  `compiling` gives the compiled function, which takes the arguments and then the tuple
  of `numbers`: arrays [], and large constants, in the order in which it reads them.
  `what` says in words what it does, for messages. The attribute `awaited` says whether
  a caller has waited for it.
  """

  def __init__(
    self,
    what: str,
    compiling: 'Future[jax.stages.Compiled]',
    numbers: tuple[jax.Array, ...],
  ) -> None:
    self.what, self.awaited = what, False
    self._compiling, self._numbers = compiling, numbers

  @property
  def compiled(self) -> jax.stages.Compiled:
    """The compiled function, once it is there."""
    return self._compiling.result()

  def failed(self) -> bool:
    """True if compiling it has ended in an error."""
    return self._compiling.done() and self._compiling.exception() is not None

  @functools.cached_property
  def numbers(self) -> tuple[jax.Array, ...]:
    """Its numbers, where it reads them."""
    return sharding.place(self._numbers, self.compiled.input_shardings[0][-1])

  def __call__(self, *args: Any) -> Any:
    """The result for arguments like those that it was compiled for."""
    return self.compiled(*args, self.numbers)


def wait_for(*programs: Program) -> tuple[Program, ...]:
  """The programs, once they are compiled; raises `TooLarge` if one does not fit."""
  new = [program for program in programs if not program.awaited]
  if new:
    with progress_lines.waiting_for(
      f'compiling {", ".join(program.what for program in new)}'
    ):
      for program in new:
        _ = program.compiled
        program.awaited = True
  return programs


class Programs:
  """The compiled programs of some runs; runs that share them compile each only once.

  Seeds of an algorithm run in the same programs: their data differ in content only,
  and `ClientInfo` is equal for equally many clients. So do algorithms that differ only
  in numbers, such as learning rates and penalties; see `hyperparameters.variable`.

  Args:
    most: how much is held, in programs and shapes; what was used least recently goes
      first.
  """

  def __init__(self, most: int = _MOST) -> None:
    self._held: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
    # Alive as long as a `Program` that is held, or used, refers to it.
    self._by_text: weakref.WeakValueDictionary[
      Hashable, Future[jax.stages.Compiled]
    ] = weakref.WeakValueDictionary()
    self._most = most
    self._threads = ThreadPoolExecutor(_AT_ONCE)
    self._lock = threading.Lock()

  @property
  def count(self) -> int:
    """How many compiled programs are held."""
    return len(self._by_text)

  def clear(self) -> None:
    """Lets go of everything that is held."""
    with self._lock:
      self._held.clear()

  def once(self, key: Hashable, make: Callable[[], Any], *args: Any) -> Any:
    """The value that `make` returned when it was first called for a key and arguments.

    It is called again for arguments of another structure, or of other shapes, dtypes
    and shardings, and under other settings of JAX.
    """
    full = (key, tuple(getattr(jax.config, n, None) for n in _SETTINGS), _kinds(args))
    with self._lock:
      if full in self._held:
        self._held.move_to_end(full)
        return self._held[full]
    value = make()
    with self._lock:
      self._held[full] = value
      while len(self._held) > self._most:
        self._held.popitem(last=False)
    return value

  def _forget(self, value: Any) -> None:
    """Lets go of one of the values of `once`."""
    with self._lock:
      for full in [full for full, held in self._held.items() if held is value]:
        del self._held[full]

  def compiled(
    self,
    key: Hashable,
    fn: Callable[..., Any],
    *args: Any,
    wait: bool = True,
    **options: Any,
  ) -> Program:
    """`jax.jit(fn, **options)`, compiled for the shapes and shardings of `args`.

    Functions of other keys that come to the same program share it. It is traced here,
    where the caller's settings hold, and compiled on another thread: meanwhile the next
    program can be traced, and compiled too where there are more than two cores.

    Args:
      key: names the function; two functions of one key must do the same. Messages call
        it by the first of it, see `_DESCRIPTIONS`.
      fn: the function to compile.
      *args: arguments like those that it will be called with, or their shapes.
      wait: False leaves it to the caller to `wait_for` the program.
      **options: of `jax.jit`.
    """
    what = _DESCRIPTIONS.get(key[0] if isinstance(key, tuple) else key, 'a program')
    key = key, str(options.get('compiler_options'))
    begin = functools.partial(self._begin, fn, args, options, what)
    program: Program = self.once(key, begin, *args)
    if program.failed():  # Of an earlier run; the device may have room now.
      self._forget(program)
      program = self.once(key, begin, *args)
    return wait_for(program)[0] if wait else program

  def _begin(
    self,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    what: str,
  ) -> Program:
    with progress_lines.waiting_for(f'tracing {what}'):
      traced = Traced.of(fn, *args)
    numbers, structure = traced.numbers, jax.tree.structure(traced.out_info)

    def run(*args_and_numbers):  # The cache of compiled programs holds its name.
      return traced(*args_and_numbers)

    with progress_lines.waiting_for(f'lowering {what}'):
      lowered = jax.jit(run, **options).lower(*args, numbers)
    # XLA sees this text, the devices and its own options, nothing else.
    text = lowered.as_text()
    # Of a callback, it does not say which function of the host is called.
    unlike = object() if 'callback' in text else None
    digest = hashlib.sha256(text.encode()).digest()
    chosen = str(options.get('compiler_options'))
    key = (digest, structure, _kinds((args, numbers)), chosen, unlike)
    begun = self._by_text.get(key)
    if begun is None or (begun.done() and begun.exception() is not None):
      begun = self._threads.submit(compile_to_fit, lowered, args, what)
      if processes.count() > 1:  # All of them are to compile in the same order.
        with progress_lines.waiting_for(f'compiling {what}'):
          begun.exception()
      self._by_text[key] = begun
    return Program(what, begun, numbers)


@functools.cache
def shared() -> Programs:
  """The compiled programs of this process, which `simulate` uses by default.

  They hold compiled code and methods, but neither data nor states, and the most
  recently used ones only; `shared().clear()` lets go of them.
  """
  return Programs()


def _kinds(args: tuple[Any, ...]) -> Hashable:
  """The kinds that two tuples of trees share if one program can take either."""
  leaves, structure = jax.tree.flatten(args)
  kinds = [(x.shape, x.dtype, getattr(x, 'sharding', None)) for x in leaves]
  return structure, tuple(kinds)


class CompileTime:
  """The time that JAX spends on compiling, while this context is open.

  Tracing, lowering, XLA and reading the persistent cache count, of every program that
  the process makes meanwhile.
  """

  _EVENTS = '/jax/core/compile/'

  def __init__(self) -> None:
    self._spans: list[tuple[float, float]] = []

  def __enter__(self) -> 'CompileTime':
    jax.monitoring.register_event_duration_secs_listener(self._listen)
    return self

  def __exit__(self, *error: object) -> None:
    jax.monitoring.unregister_event_duration_listener(self._listen)

  def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event.startswith(self._EVENTS):
      now = time.perf_counter()
      self._spans.append((now - duration_secs, now))

  def seconds(self) -> float:
    """Seconds so far; what happens at the same time counts once."""
    total, last = 0.0, -math.inf
    for start, end in sorted(self._spans):
      total += max(0.0, end - max(start, last))
      last = max(last, end)
    return total
