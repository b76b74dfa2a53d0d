"""Calls of all callbacks of a run."""

import json
from collections.abc import Sequence

from absl import logging

from fesem_jax.run.callbacks.callback import Callback, Event, Stop
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check

FINISHED = 'finished'  # The reason of a run that has done all its rounds.

# Entries that the run adds to a record after callbacks.
_RESERVED = {'deployed', 'finetuned', 'finetuning_failed', 'honest', 'stopped'}


def check_callbacks(own: Sequence[Callback]) -> None:
  """Raises `UserError` on other objects, and on unknown methods `on_...`."""
  events = {name for name in dir(Callback) if name.startswith('on_')}
  for callback in own:
    kind = type(callback).__name__
    check(isinstance(callback, Callback), f'callbacks: {kind} is no fesem_jax.Callback')
    unknown = {name for name in dir(callback) if name.startswith('on_')} - events
    check(not unknown, f'callbacks: {kind} has unknown methods {sorted(unknown)}')


class Callbacks:
  """The callbacks of a run: the run's own, then the user's, which may raise."""

  def __init__(self, first: Sequence[Callback], own: Sequence[Callback]):
    self._first, self._own = list(first), list(own)
    self._started = list[Callback]()
    self._error: Exception | None = None

  def on_start(self, event: Event) -> str | None:
    """The reason why no round follows the start, or None."""
    stops = []
    for callback in [*self._first, *self._own]:
      self._started.append(callback)
      stops.append(callback.on_start(event))
    if event.number == event.rounds:
      return FINISHED
    before = event.record.get('stopped')
    if before and before['rounds'] >= event.rounds:  # More rounds continue the run.
      return before['reason']
    return self._agreed(stops)

  def on_round(self, event: Event) -> str | None:
    """The reason to end the run after this round, or None."""
    for callback in self._first:
      callback.on_round(event)
    reason = self._agreed(self._call('on_round', event, event.record))
    if reason is not None and event.number < event.rounds:
      event.record['stopped'] = {'reason': reason, 'rounds': event.rounds}
    return reason

  def halts(self, interrupted: bool) -> bool:
    """True if the run ends here because of a signal or an error."""
    return processes.any_of(interrupted or self._error is not None)

  def on_end(self, event: Event) -> None:
    """Calls `on_end` of all; raises the error of a callback."""
    for callback in self._first:
      callback.on_end(event)
    self._call('on_end', event, event.summary)
    self.raise_error('')

  def raise_error(self, kept: str) -> None:
    """Raises the error of a callback, if any, with a note on what was saved."""
    failed = bool(self._own) and processes.any_of(self._error is not None)
    if self._error is not None:
      if kept:
        self._error.add_note(kept)
      raise self._error
    if failed:
      raise processes.FirstProcessFailed('A callback failed in another process.')

  def __enter__(self) -> 'Callbacks':
    return self

  def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
    """Closes all callbacks that were started, also after an error."""
    while self._started:
      callback = self._started.pop()
      try:
        callback.close(error)
      except Exception as e:
        logging.warning('%s failed: %s', _name(callback, 'close'), e)

  def _call(self, method: str, event: Event, record: Record) -> list[Stop | None]:
    """The values that the user's callbacks return, except those that raise."""
    stops: list[Stop | None] = []
    for callback in list(self._own):
      name, before = _name(callback, method), dict(record)
      try:
        stops.append(getattr(callback, method)(event))
        record.update(_plain(name, record, before))
      except Exception as e:
        record.clear()
        record.update(before)
        self._own.remove(callback)
        if self._error is None:
          self._error = e
        else:
          logging.exception('%s failed too.', name)
    return stops

  def _agreed(self, stops: Sequence[Stop | None]) -> str | None:
    """The first reason to stop, decided by the first process."""
    reason = next((stop.reason for stop in stops if stop is not None), None)
    return processes.from_first(lambda: reason) if self._own else reason


def _plain(name: str, record: Record, before: Record) -> Record:
  """Converts an addition of a callback to JSON types; NaN becomes None."""
  added = {k: x for k, x in record.items() if k not in before or before[k] is not x}
  reserved = sorted(_RESERVED & (added.keys() - before.keys()))
  check(not reserved, f'{name}: adds {reserved} to a record; choose another name')
  text = json.dumps(added, default=lambda x: x.tolist())
  return json.loads(text, parse_constant=lambda _: None)


def _name(callback: Callback, method: str) -> str:
  return f'{type(callback).__name__}.{method}'
