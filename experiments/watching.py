"""The callbacks that flags ask for."""

from typing import Any

from fesem_jax.run.callbacks import (
  ClientHistory,
  Costs,
  loggers,
)
from fesem_jax.run.callbacks.callback import Callback
from fesem_jax.utils.errors import check

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
  if every := machine.get('client_metrics_every'):
    chosen.append(ClientHistory(every))
  if profile := (config or {}).get('device_profile'):
    chosen.append(Costs(profile))
  return chosen + loggers.build(machine.get('log_to') or [])


def _own(name: str) -> list[Callback]:
  """Values that a function of the user's own returns, as a list."""
  check(plugins.is_own(name), f'callbacks: {name!r} is not MODULE:FUNCTION')
  own = plugins.load(name)()
  listed = list(own) if isinstance(own, list | tuple) else [own]
  for one in listed:
    check(isinstance(one, Callback), f'callbacks: {name} returned no Callback')
  return listed
