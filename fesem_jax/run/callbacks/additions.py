"""Entries that callbacks add to a record: new names, values that JSON can hold."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from fesem_jax.run.results.records import Record
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import first_line

# Entries that the run adds later.
_OF_THE_RUN = (
  'deployed',
  'finetuned',
  'finetuning_failed',
  'honest',
  'seconds',
  'stopped',
)

_NAMES = 'added_by_callbacks'  # Entry of a summary: the names of theirs.


@contextlib.contextmanager
def checked(name: str, record: Record) -> Iterator[None]:
  """Checks the entries that a block adds to a record; if it raises, none is added.

  Numbers and arrays of NumPy and JAX become Python numbers and lists in the record
  itself. Raises `UserError`, about the callback's method `name`, if an entry was
  changed or removed, or if JSON cannot hold a new one.
  """
  before, text = dict(record), json.dumps(record)
  try:
    yield
    if not _holds(record, before, text):
      raise UserError(
        f'{name} changed or removed entries of a record; add entries of new names only.'
      )
    record.update(json.loads(text))
    for key in record.keys() - before.keys():
      record[key] = _plain(name, key, record[key])
  except BaseException:
    record.clear()
    record.update(json.loads(text))
    raise


@contextlib.contextmanager
def renewed(summary: Record) -> Iterator[None]:
  """Lets callbacks replace the entries that they added to a finished run's summary.

  The summary, which is modified in place, lists the names of these entries. Entries
  that are not added again keep their values.
  """
  named = summary.pop(_NAMES, None)
  names = [n for n in named if isinstance(n, str)] if isinstance(named, list) else []
  earlier = {name: summary.pop(name) for name in names if name in summary}
  before = set(summary)
  yield
  for name, value in earlier.items():
    summary.setdefault(name, value)
  if added := sorted(summary.keys() - before):
    summary[_NAMES] = added


def _holds(record: Record, before: Record, text: str) -> bool:
  """True if a record still has the entries of `before`, whose JSON is `text`."""
  try:
    held = {key: record[key] for key in before}
    return json.dumps(held, default=lambda x: x.tolist()) == text
  except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
    return False


def _plain(name: str, key: Any, value: Any) -> Any:
  """A value after a JSON round trip; NaN and infinities become None."""
  if not isinstance(key, str):
    raise UserError(f'{name} added the entry {key!r} to a record; use a string.')
  if key in _OF_THE_RUN:
    raise UserError(f'{name} added {key!r} to a record, which is an entry of the run.')
  try:
    text = json.dumps(value, default=lambda x: x.tolist())
    return json.loads(text, parse_constant=lambda _: None)
  except (TypeError, ValueError, AttributeError, RecursionError) as e:
    raise UserError(
      f'{name} added the entry {key!r} to a record, which JSON cannot hold '
      f'({first_line(e)}); use numbers, text, lists and dicts of them.'
    ) from e
