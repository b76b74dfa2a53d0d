"""Calls of all callbacks of a run."""

import json
from collections.abc import Sequence

from fesem_jax.run.callbacks.callback import Callback, Event
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check

# Entries that the run adds to a record after callbacks.
_RESERVED = {'deployed', 'finetuned', 'finetuning_failed', 'honest', 'stopped'}


def check_callbacks(callbacks: Sequence[Callback]) -> None:
  """Raises `UserError` on other objects, and on unknown methods `on_...`."""
  events = {name for name in dir(Callback) if name.startswith('on_')}
  for callback in callbacks:
    kind = type(callback).__name__
    check(isinstance(callback, Callback), f'callbacks: {kind} is no fesem_jax.Callback')
    unknown = {name for name in dir(callback) if name.startswith('on_')} - events
    check(not unknown, f'callbacks: {kind} has unknown methods {sorted(unknown)}')


def call(
  callbacks: Sequence[Callback], method: str, event: Event, record: Record
) -> str | None:
  """Calls a method of all callbacks, which may add entries to a record.

  Returns the first reason to stop, decided by the first process.
  """
  stops = []
  for callback in callbacks:
    before = dict(record)
    stops.append(getattr(callback, method)(event))
    record.update(_plain(type(callback).__name__, record, before))
  reason = next((stop.reason for stop in stops if stop is not None), None)
  return processes.from_first(lambda: reason) if callbacks else reason


def _plain(kind: str, record: Record, before: Record) -> Record:
  """Converts an addition of a callback to JSON types; NaN becomes None."""
  added = {k: x for k, x in record.items() if k not in before or before[k] is not x}
  reserved = sorted(_RESERVED & (added.keys() - before.keys()))
  check(not reserved, f'{kind}: adds {reserved} to a record; choose another name')
  text = json.dumps(added, default=lambda x: x.tolist())
  return json.loads(text, parse_constant=lambda _: None)
