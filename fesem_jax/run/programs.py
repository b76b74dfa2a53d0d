"""Compiled programs, kept so that further runs of a method can share them."""

import collections
import contextlib
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

from fesem_jax.core import sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.run.program_memory import compile_to_fit
from fesem_jax.utils import processes, progress_lines

# Programs that are compiled at once: each takes a core or two and some 350 MiB.
_AT_ONCE = max(1, sharding.cores() // 2)

_LEVEL = 'xla_backend_optimization_level'
# JAX 0.11 does not know this option.
_EMITTERS = (
  {'xla_cpu_use_fusion_emitters': False} if jax.__version_info__ < (0, 11) else {}
)
_PARTS = 'xla_cpu_parallel_codegen_split_count'

# Multiplications that a CPU does sooner, however compiled, than it compiles them well:
# of one program, and of all rounds of runs side by side without XLA's emitters.
_FEW, _FEW_IN_ROUNDS = 2**31, 2**36

# The most values that are kept: a run has about six programs, of 30 MiB and 950 of the
# 65,530 memory mappings of a process for a small model on a CPU, and as many traces.
_MOST = 96


def run_once(
  local: LocalTraining, data: FederatedData, runs: int = 1
) -> dict[str, Any]:
  """Options of `jax.jit` for a program that runs once in each of several `runs`.

  Without some of LLVM's passes it takes 30 % less time to compile on a CPU, without any
  half of the time, which pays where there is little to train and nothing to convolve.
  """
  few = runs * _multiplications(local, data) < _FEW
  level = 0 if few and not local.convolves else 1
  return with_passes(level, few or runs > 1, runs > 1)


def run_often(local: LocalTraining, data: FederatedData, rounds: int) -> dict[str, Any]:
  """Options of `jax.jit` for a program of runs side by side, of all their `rounds`."""
  return with_passes(1, rounds * _multiplications(local, data) < _FEW_IN_ROUNDS, True)


def _multiplications(local: LocalTraining, data: FederatedData) -> int:
  """Bound for a pass over the data: each parameter meets each number of an example."""
  numbers_per_example = math.prod(data.example_shape) * local.num_parameters
  return numbers_per_example * data.y.shape[0]


def with_passes(level: int, few: bool = False, many: bool = False) -> dict[str, Any]:
  """Options of `jax.jit` for a program that a CPU compiles with fewer passes of LLVM.

  One of `few` multiplications is also compiled without XLA's emitters of fused
  operations, in half of the time; it then runs up to twice as long, and differs on
  other numbers of devices. One of `many` runs side by side is not split for several
  threads: other programs occupy them. XLA_FLAGS wins.
  """
  if jax.default_backend() != 'cpu' or _LEVEL in os.environ.get('XLA_FLAGS', ''):
    return {}
  options = {_LEVEL: level} | ({_PARTS: 1} if many else {})
  if few and not sharding.is_identical:
    options |= _EMITTERS
  return {'compiler_options': options}


_T = TypeVar('_T')
# Set once a first program is being compiled.
begun = threading.Event()

_cached: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
_lock = threading.Lock()


@functools.cache
def _threads() -> ThreadPoolExecutor:
  return ThreadPoolExecutor(_AT_ONCE)


def once(key: Hashable, make: Callable[[], _T], *args: Any) -> _T:
  """The value that `make` returned when it was first called for a key and arguments.

  It is called again for arguments of another structure, or of other shapes, dtypes and
  shardings, under other settings of JAX, and for values that were not used for long.
  """
  settings = tuple(getattr(jax.config, name, None) for name in jax.config.values)
  full = (key, settings, _kinds(args))
  with _lock:
    if full in _cached:
      _cached.move_to_end(full)
      value: _T = _cached[full]
      return value
  value = make()
  with _lock:
    _cached[full] = value
    while len(_cached) > _MOST:
      _cached.popitem(last=False)
  return value


def clear() -> None:
  """Lets go of all compiled programs."""
  with _lock:
    _cached.clear()


# Seconds of each wait of a run for a program.
_waits: list[float] = []


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
  """Shows what is being traced or compiled, and counts the time."""
  began = time.perf_counter()
  with progress_lines.waiting_for(what):
    yield
  _waits.append(time.perf_counter() - began)


def clock() -> np.ndarray:
  """The time, and the seconds that runs of this process have waited for programs."""
  return np.array([time.perf_counter(), sum(_waits)])


class Program:
  """A function that another thread compiles; `what` it does is for messages."""

  def __init__(self, what: str, compile: Callable[[], jax.stages.Compiled]) -> None:
    self.what, self._compile = what, compile
    self._compiling = _threads().submit(compile)
    begun.set()

  @functools.cached_property
  def compiled(self) -> jax.stages.Compiled:
    """The compiled function; raises `TooLarge` if it does not fit."""
    with waiting(f'compiling {self.what}'):
      try:
        if self._compiling.cancel():  # It was to come after others.
          return self._compile()
        return self._compiling.result()
      except Exception:
        clear()  # The device may have room in a later run.
        raise

  def __call__(self, *args: Any) -> Any:
    """The result for arguments like those that it is compiled for."""
    return self.compiled(*args)


def traced(
  what: str, key: Hashable, fn: Callable[..., Any], *args: Any, **options: Any
) -> jax.stages.Traced:
  """`jax.jit(fn, **options)`, traced once for a key; see `compiled`."""

  def trace() -> jax.stages.Traced:
    with waiting(f'tracing {what}'):
      return jax.jit(fn, **options).trace(*args)

  return once(('traced', what, key), trace, *args)


def compiled(
  what: str, key: Hashable, fn: Callable[..., Any], *args: Any, **options: Any
) -> Program:
  """`jax.jit(fn, **options)`, compiled for the shapes and shardings of `args`.

  It is traced here, and compiled on another thread: meanwhile the next program can be
  traced. `key` names the function and the options; two functions of one key must do the
  same.
  """

  def begin() -> Program:
    traced_program = traced(what, key, fn, *args, **options)
    with waiting(f'compiling {what}'):
      lowered = traced_program.lower()
    shapes = jax.tree.map(shape_of, args)  # A program is kept, arguments are not.
    program = Program(what, lambda: compile_to_fit(lowered, shapes, what))
    if processes.count() > 1:  # All of them are to compile in the same order.
      _ = program.compiled
    return program

  return once((what, key), begin, *args)


def shape_of(x: Any, placed: Any = None) -> Any:
  """The shape of an array, which does not hold it; numbers as they are."""
  if not isinstance(x, jax.Array):
    return x
  is_weak = getattr(x, 'weak_type', False)  # Random keys do not say.
  placed = placed or x.sharding
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed, weak_type=is_weak)


def _kinds(args: tuple[Any, ...]) -> Hashable:
  """Equal for tuples of trees that one program can take."""
  leaves, structure = jax.tree.flatten(args)
  kinds = [
    (x.shape, x.dtype, getattr(x, 'sharding', None)) if hasattr(x, 'shape') else type(x)
    for x in leaves
  ]
  return structure, tuple(kinds)
