"""Costs of rounds: bytes sent, and seconds on devices of a profile."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.core.traffic import NUMBER, Drawn, Sent, Traffic
from fesem_jax.utils import display

Record = dict[str, Any]

_BYTES = ('bytes_down', 'bytes_up')


def of_round(sent: Sent, drawn: Drawn, arrived: int) -> Record:
  """Bytes of all clients of a round.

  `sent` is what each of them receives and sends. One of those `drawn` that drops out
  has received what it needs; `arrived` is how many sent their updates.
  """
  down = np.broadcast_to(np.asarray(sent.down, np.float64), drawn.ids.shape)
  return {
    'bytes_down': round(down.sum()),
    'bytes_up': round(np.mean(sent.up) * arrived),
  }


def of_candidates(sent: Sent, drawn: Drawn, candidates: int) -> Record:
  """Bytes of clients that got their model, and sent its loss, to be selected by it.

  Those `drawn` of the `candidates` have their model then.
  """
  others = max(0, candidates - len(drawn.ids))
  return {
    'bytes_down': round(np.mean(sent.down) * others),
    'bytes_up': NUMBER * candidates,
  }


def of_start(traffic: Traffic, num_clients: int, known: Any = None) -> Record:
  """Bytes before the first round, as the record of round 1 holds them; {} if none.

  `known` is what `Traffic.known` gives of the first state.
  """
  down, up = traffic.of_start(num_clients)
  if traffic.start_up is not None:
    up += traffic.start_up(known)
  if not down and not up:
    return {}
  return {'start_bytes_down': round(down), 'start_bytes_up': round(up)}


def summary(history: Sequence[Record], device_profile: str = '') -> Record:
  """The entry `costs` of a summary.

  `device_profile` is the one that rounds were timed with; '' if they were not. Returns
  `bytes_down` and `bytes_up` of the whole run, the start's among them, and, with a
  profile, `simulated_seconds` of its rounds: None where a round's are not known.
  `start` has the bytes before the first round.
  """
  rounds = [r for r in history if r['round']]
  parts = {n: [r.get(f'start_{n}') for r in rounds] for n in _BYTES}
  start = {n: sum(x for x in p if isinstance(x, int | float)) for n, p in parts.items()}
  totals: Record = {n: total(rounds, n, start[n]) for n in _BYTES}
  totals['start'] = start
  if device_profile:
    totals['device_profile'] = device_profile
    totals['simulated_seconds'] = total(rounds, 'simulated_seconds')
  return totals


def total(rounds: Sequence[Record], name: str, start: float = 0) -> float | None:
  """Sum of an entry over rounds; None if one of them lacks it."""
  values = [r.get(name) for r in rounds]
  known = [v for v in values if isinstance(v, int | float)]
  return start + sum(known) if len(known) == len(values) else None


def as_text(costs: Record) -> str:
  """'1.2 GB to clients and 0.4 GB from them'; '' where nothing is sent, or known."""
  sent = [costs[name] / 1e9 for name in _BYTES if costs.get(name)]
  if len(sent) < len(_BYTES):
    return ''
  down, up = (_rounded(x, display.BYTES) for x in sent)
  line = f'{down} to clients and {up} from them'
  if (seconds := costs.get('simulated_seconds')) is not None:
    hours = _rounded(seconds / 3600, display.HOURS)
    line += f'; {hours} on devices of profile {costs["device_profile"]}'
    if any((costs.get('start') or {}).values()):
      line += ', without what comes before the first round'
  return line


def _rounded(value: float, units: Sequence[tuple[str, float]]) -> str:
  """'1.23 GB' of 10^9 bytes, or '1.5 h' of hours."""
  unit, size = display.unit_of(value, units)
  return f'{value * size:.3g} {unit}'
