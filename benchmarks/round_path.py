r"""Counts what one round passes through: files, functions, calls within calls.

  python -m benchmarks.round_path
  python -m benchmarks.round_path --algorithm=scaffold --files

Counts what of `fesem_jax` runs while a round is traced, and the time of tracing and
lowering it.
"""

import pathlib
import statistics
import sys
import time
from typing import Any

import fesem_jax as fj

fj.setup_devices(1)

import jax  # noqa: E402
import optax  # noqa: E402
from absl import app, flags  # noqa: E402

_ALGORITHM = flags.DEFINE_string('algorithm', 'fesem', 'Name of the method.')
_FILES = flags.DEFINE_bool('files', False, 'Names each file and its functions.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Times to trace and lower, of which the '
                                'median is given.')  # fmt: skip

_ROOT = pathlib.Path(fj.__file__).parent


def path_of(run: Any) -> tuple[dict[pathlib.Path, set[str]], int]:
  """Functions of each file of the library that `run` calls, and the deepest call."""
  functions_of: dict[pathlib.Path, set[str]] = {}
  depth = deepest = 0

  def note(frame: Any, event: str, arg: Any) -> None:
    nonlocal depth, deepest
    file = pathlib.Path(frame.f_code.co_filename)
    if event not in ('call', 'return') or _ROOT not in file.parents:
      return
    depth += 1 if event == 'call' else -1
    if event == 'call':
      deepest = max(deepest, depth)
      functions_of.setdefault(file, set()).add(frame.f_code.co_qualname)

  sys.setprofile(note)
  try:
    run()
  finally:
    sys.setprofile(None)
  return functions_of, deepest


def main(argv: list[str]) -> None:
  """Prints the figures; the last line has all of them."""
  del argv
  train, _ = fj.data.load('digits', partition='rotated', num_clients=24)
  model = fj.models.build('logistic', train.example_shape, train.num_classes)
  local = fj.local_training(model, optax.sgd(0.1))
  algorithm = fj.algorithms.build(_ALGORITHM.value, local)
  key = jax.random.key(0)
  state = jax.eval_shape(algorithm.init, key, train)
  args = state, train, fj.everyone(train), key

  def trace() -> Any:
    # Another function each time: JAX keeps what it has traced.
    return jax.jit(lambda *args: algorithm.step(*args)).trace(*args)

  trace()
  jax.clear_caches()
  functions_of, deepest = path_of(trace)
  if _FILES.value:
    for file, functions in sorted(functions_of.items()):
      print(f'{file.relative_to(_ROOT)}: {", ".join(sorted(functions))}')
  tracing, lowering = [], []
  for _ in range(_REPEATS.value):
    jax.clear_caches()
    start = time.perf_counter()
    traced = trace()
    middle = time.perf_counter()
    traced.lower()
    tracing.append(middle - start)
    lowering.append(time.perf_counter() - middle)
  lines = sum(len(file.read_text().splitlines()) for file in functions_of)
  count = sum(map(len, functions_of.values()))
  seconds = (
    f'{statistics.median(tracing):.2f} s',
    f'{statistics.median(lowering):.2f} s',
  )
  print(
    f'{_ALGORITHM.value}: {len(functions_of)} files of {lines:,} lines, {count} '
    f'functions, {deepest} frames; traced in {seconds[0]}, lowered in {seconds[1]}'
  )


if __name__ == '__main__':
  app.run(main)
