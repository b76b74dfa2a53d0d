"""The callbacks that flags ask for."""

import pathlib
from collections.abc import Sequence
from typing import Any

from fesem_jax.run.callbacks import (
  AssignmentRegret,
  CenterDistances,
  ClientHistory,
  Costs,
  loggers,
)
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.run.results import client_history
from fesem_jax.run.results.result import Result
from fesem_jax.utils.errors import UserError, argument

from . import plugins


def callbacks(
  machine: dict[str, Any], config: dict[str, Any] | None = None
) -> list[Callback]:
  """New callbacks for a run: those of the user's own, then what it records and logs.

  `machine` and `config` are from `flags.machine` and `flags.configuration`. Raises
  `UserError` on a function that cannot be used, an unknown logger or one whose package
  is not installed.
  """
  chosen: list[Callback] = []
  for name in machine.get('callbacks') or []:
    chosen += _own(name)
  if machine.get('regret'):
    chosen.append(AssignmentRegret())
  if clients := machine.get('center_distances'):
    chosen.append(CenterDistances(clients))
  if every := machine.get('client_metrics_every'):
    chosen.append(ClientHistory(every))
  if profile := (config or {}).get('device_profile'):
    chosen.append(Costs(profile))
  return chosen + loggers.build(_logs_to(machine))


def notes(
  watchers: Sequence[Callback], result: Result, workdir: pathlib.Path
) -> list[str]:
  """Sentences on what the `callbacks` of an already finished run have not recorded."""
  sentences, rounds = [], result.summary['rounds']
  late = (
    f'has no effect: all {rounds} rounds were already done; raise --rounds to record '
    'further rounds, or name another --workdir to start again.'
  )
  for watcher in watchers:
    regrets = isinstance(watcher, AssignmentRegret) and watcher.applies
    if regrets and 'regret' not in result.summary:
      sentences.append(f'--regret {late}')
    measures = isinstance(watcher, CenterDistances)
    if measures and 'center_distances' not in result.history[-1]:
      sentences.append(f'--center_distances {late}')
    if isinstance(watcher, ClientHistory) and not _recorded(workdir):
      named = argument('client_metrics_every', watcher.every)
      early = f'recorded no round: the run has only {rounds}; lower it.'
      sentences.append(f'{named} {early if watcher.every > rounds else late}')
  return sentences


def _recorded(workdir: pathlib.Path) -> bool:
  """True if a workdir has a history of more than the clusters of the start."""
  held = any(workdir.glob('history.*'))
  return held and client_history.read(workdir).rounds != [0]


def _logs_to(machine: dict[str, Any]) -> list[str]:
  also = ['tensorboard'] if machine.get('tensorboard') else []
  return [*also, *(machine.get('log_to') or [])]


def _own(name: str) -> list[Callback]:
  """Values that a function of the user's own returns, as a list."""
  if not plugins.is_own(name):
    raise UserError(f'{argument("callbacks", name)} is not MODULE:FUNCTION.')
  make = plugins.load('callbacks', name)
  with plugins.running('callbacks', name):
    own = make()
  listed = list(own) if isinstance(own, list | tuple) else [own]
  for one in listed:
    if not isinstance(one, Callback):
      raise UserError(
        f'{argument("callbacks", name)} must return a fesem_jax.Callback or a list of '
        f'them; it returned {type(one).__name__}.'
      )
  return listed
