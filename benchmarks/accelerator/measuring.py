"""Functions that the parts share: time that is left, timing, meshes, rows."""

import math
import multiprocessing
import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fesem_jax.core import sharding

# A dictionary of a figure and what it is of; goes to the file as soon as it is said.
Row = dict[str, Any]


class Watch(NamedTuple):
  """Settings and clock of a part.

  Attributes:
    say: takes each row as it is measured.
    deadline: of the part, in `time.time`.
    small: whether sizes are for a test on a CPU.
    known: rows of earlier parts, by the part's letter.
    cache: folder of compiled programs.
    only: a regular expression; cases whose text has no match are left out.
  """

  say: Callable[[Row], None]
  deadline: float
  small: bool
  known: dict[str, list[Row]]
  cache: str
  only: str = ''

  def left(self) -> float:
    """Seconds until the deadline."""
    return self.deadline - time.time()

  def wants(self, **case: Any) -> bool:
    """Tells if `only` has a match in a case."""
    text = ' '.join(f'{k}={v}' for k, v in case.items())
    return re.search(self.only, text) is not None

  def has(self, seconds: float, **case: Any) -> bool:
    """Tells if a case is wanted and so many seconds are left; says if they are not."""
    if not self.wants(**case):
      return False
    if self.left() > seconds:
      return True
    why = f'{seconds:.0f} s expected, {max(0.0, self.left()):.0f} s left'
    self.say(case | {'skipped': why})
    return False

  def tried(self, fn: Callable[[], Any], **case: Any) -> Any:
    """The result of `fn`; None, with a row of its error, where it raises one."""
    try:
      return fn()
    except Exception as e:
      last = traceback.extract_tb(e.__traceback__)[-1]
      where = f'{last.filename.rpartition("/")[2]}:{last.lineno}'
      text = f'{type(e).__name__} at {where}: {e}'
      self.say(case | {'error': text[:600]})
      traceback.print_exc()
      return None

  def figure(self, part: str, what: str) -> float | None:
    """A figure of an earlier part, whose row is named so."""
    rows = [r for r in self.known.get(part, []) if r.get('what') == what]
    return rows[-1].get('value') if rows else None


def started(target: Callable[..., None], *args: Any) -> tuple[Any, Connection]:
  """A process of `target`, whose first argument is the other end of the pipe."""
  context = multiprocessing.get_context('spawn')
  pipe, theirs = context.Pipe()
  process = context.Process(target=target, args=(theirs, *args))
  process.start()
  theirs.close()
  return process, pipe


def rows_of(process: Any, pipe: Connection, watch: Watch, **case: Any) -> Iterator[Row]:
  """Yields what a process sends until it ends, or time is over; then ends it."""
  try:
    while pipe.poll(max(0.0, watch.left())):
      yield pipe.recv()
    watch.say(case | {'skipped': 'no time is left'})
  except EOFError:
    process.join(2)
    if process.exitcode:
      watch.say(case | {'error': f'ended with exit code {process.exitcode}'})
  process.kill()
  process.join()


def setup() -> None:
  """Devices as a run sees them; 16 or so for the CPU beside an accelerator."""
  sharding.setup_devices()


def chip() -> Mesh:
  """The mesh of the first device."""
  return sharding.client_mesh(1)


def host() -> Mesh:
  """The mesh of a CPU device other than `chip`'s."""
  return Mesh(np.array(jax.devices('cpu')[-1:]), (sharding.CLIENTS,))


def timed(
  fn: Callable[[], Any], most: float = 1.0, repeats: int = 15, calls: int = 1
) -> dict[str, Any]:
  """Seconds of a call of `fn`, whose result is waited for.

  Args:
    fn: is called twice to warm up, or once where that takes longer than `most`.
    most: seconds that all timings may take, though there are three at least, or one
      where a call takes longer than `most`.
    repeats: timings at most.
    calls: in a timing, one waited for after the last.
  """
  first = _seconds(fn, 1)
  again = _seconds(fn, 1) if first < most else first
  count = int(most / max(again * calls, 1e-9))
  count = min(repeats, max(3 if again < most else 1, count))
  times = [_seconds(fn, calls) for _ in range(count)]
  return {
    'seconds': statistics.median(times), 'least_seconds': min(times),
    'most_seconds': max(times), 'timings': count, 'first_seconds': first,
  }  # fmt: skip


def _seconds(fn: Callable[[], Any], calls: int) -> float:
  began = time.perf_counter()
  for _ in range(calls):
    out = fn()
  jax.block_until_ready(out)
  return (time.perf_counter() - began) / calls


def count_of(compiled: Any, what: str) -> float | None:
  """'flops' or 'bytes accessed' of a program by its compiler, which may not say.

  The body of a loop counts once, however often it runs.
  """
  try:
    analysis = compiled.cost_analysis()
  except Exception:
    return None
  analysis = analysis[0] if isinstance(analysis, list | tuple) else analysis
  value = (analysis or {}).get(what)
  return None if value is None or not math.isfinite(value) else float(value)


# Only in the file.
_UNSHOWN = {
  'least_seconds', 'most_seconds', 'timings', 'first_seconds', 'versions', 'processor',
  'defaults', 'commit', 'unit', 'moved',
}  # fmt: skip


def shown(row: Row) -> str:
  """A row on a line."""
  return ' '.join(
    f'{k}={_text(v)}' for k, v in row.items() if v is not None and k not in _UNSHOWN
  )


def _text(value: Any) -> str:
  if isinstance(value, bool) or not isinstance(value, int | float):
    return str(value)
  if isinstance(value, int) or abs(value) >= 10_000:
    return f'{value:,.0f}'
  return f'{value:.4g}'
