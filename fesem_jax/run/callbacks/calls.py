"""Calls of all callbacks of a run."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import logging

from fesem_jax.run.callbacks.callback import Callback, Stop
from fesem_jax.run.callbacks.events import End, Evaluation, Round, RoundEnd, Start
from fesem_jax.run.results import client_table
from fesem_jax.run.results.records import Record
from fesem_jax.utils import processes
from fesem_jax.utils.errors import check

if TYPE_CHECKING:
  from pandas import DataFrame  # Slow to import.

FINISHED = 'finished'  # The reason of a run that has done all its rounds.

# Entries that the run adds to a record after callbacks.
_RESERVED = {
  'deployed', 'finetuned', 'finetuning_failed', 'honest', 'seconds', 'stopped',
}  # fmt: skip


def check_callbacks(own: Sequence[Callback]) -> None:
  """Raises `UserError` unless all are callbacks, without unknown methods `on_...`."""
  events = {name for name in dir(Callback) if name.startswith('on_')}
  for callback in own:
    kind = type(callback).__name__
    check(isinstance(callback, Callback), f'callbacks: {kind} is no fesem_jax.Callback')
    unknown = {name for name in dir(callback) if name.startswith('on_')} - events
    check(not unknown, f'callbacks: {kind} has unknown methods {sorted(unknown)}')


class Callbacks:
  """The callbacks of a run: the user's, and the run's own before and after them.

  If a callback of the user raises, it is not called again, and its error is raised
  after the round is saved. For the `UserError`, see `check_callbacks`.
  """

  def __init__(self, own: Sequence[Callback]):
    check_callbacks(own)
    self._own, self._first = list(own), list[Callback]()
    self._built_in: list[Callback] = []
    self._started: list[Callback] = []
    self._rounds = 0
    self._error: Exception | None = None

  def includes(self, kind: type[Callback]) -> bool:
    """True if one of the user's callbacks is an instance of a class."""
    return any(isinstance(callback, kind) for callback in self._own)

  def on_start(
    self, start: Start, first: Sequence[Callback], built_in: Sequence[Callback]
  ) -> str | None:
    """Calls `on_start` of all; returns the reason why no round follows, or None.

    `first` are measurements of the run, called before the user's; they never end a run.
    `built_in` are files and progress of the run; their errors end it immediately.
    """
    self._rounds, stops = start.rounds, []
    self._first, self._built_in = list(first), list(built_in)
    for callback in [*self._first, *self._own, *self._built_in]:
      self._started.append(callback)
      stops.append(callback.on_start(start))
    if start.done == start.rounds:
      return FINISHED
    before = start.records[-1].get('stopped') if start.records else None
    if before and before['rounds'] >= start.rounds:  # More rounds continue the run.
      return before['reason']
    return self._agreed(stops)

  def on_round(self, event: Round) -> str | None:
    """Calls `on_round` of all; returns the reason to end the run, or None."""
    return self._ask('on_round', event)

  def on_evaluation(self, event: Evaluation) -> str | None:
    """Calls `on_evaluation` of all; returns the reason to end the run, or None."""
    return self._ask('on_evaluation', event)

  def on_round_end(self, event: RoundEnd, interrupted: bool) -> bool:
    """Calls `on_round_end` of all, which also saves the round.

    Returns whether the run ends here because of a signal (`interrupted`) or an error.
    """
    self._call('on_round_end', event, event.record)
    halted = processes.any_of(interrupted or self._error is not None)
    event = dataclasses.replace(event, last=event.last or halted)
    for callback in self._built_in:
      callback.on_round_end(event)
    return halted

  def with_columns(self, clients: 'DataFrame') -> 'DataFrame':
    """The table of clients with the columns that the user's callbacks add."""
    for callback in self._own:
      name = _name(callback, 'client_columns')
      clients = client_table.with_columns(clients, callback.client_columns(), name)
    return clients

  def on_end(self, event: End) -> None:
    """Calls `on_end` of all callbacks."""
    for callback in self._first:
      callback.on_end(event)
    self._call('on_end', event, event.summary)
    self.raise_error('')
    for callback in self._built_in:
      callback.on_end(event)

  def raise_error(self, kept: str) -> None:
    """Raises the error of a callback, if any; `kept` describes what was saved."""
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

  def _ask(self, method: str, event: Round | Evaluation) -> str | None:
    for callback in self._first:
      getattr(callback, method)(event)
    reason = self._agreed(self._call(method, event, event.record))
    if reason is not None and event.number < self._rounds:
      event.record['stopped'] = {'reason': reason, 'rounds': self._rounds}
    for callback in self._built_in:
      stop = getattr(callback, method)(event)
      reason = reason or (stop and stop.reason)
    return reason

  def _call(self, method: str, event: Any, record: Record) -> list[Stop | None]:
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
