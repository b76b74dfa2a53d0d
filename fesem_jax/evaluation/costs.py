"""Costs of rounds: bytes sent, and seconds on devices of a profile."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fesem_jax.core.traffic import NUMBER, Drawn, Sent, Traffic

Record = dict[str, Any]

_BYTES = ('bytes_down', 'bytes_up')


def round_bytes(sent: Sent, drawn: Drawn, arrived: int) -> Record:
  """Bytes of a round, of whose clients `arrived` have sent their updates."""
  down = np.broadcast_to(np.asarray(sent.down, np.float64), drawn.ids.shape)
  up = np.mean(sent.up) * arrived
  return dict(zip(_BYTES, (round(down.sum()), round(up)), strict=True))


def candidate_bytes(sent: Sent, drawn: Drawn, candidates: int) -> Record:
  """Bytes of `candidates` that send a loss to be selected by it, but not of `drawn`."""
  down = np.mean(sent.down) * max(0, candidates - len(drawn.ids))
  return dict(zip(_BYTES, (round(down), NUMBER * candidates), strict=True))


def start_bytes(traffic: Traffic, num_clients: int, inputs: Any = None) -> Record:
  """Bytes before round 1, of the `inputs` of its first state; {} if there are none."""
  down, up = traffic.start_bytes(num_clients)
  if traffic.start_up is not None:
    up += traffic.start_up(inputs)
  start = {'start_bytes_down': round(down), 'start_bytes_up': round(up)}
  return start if down or up else {}


def summary(history: Sequence[Record], device_profile: str = '') -> Record:
  """The entry `costs` of a summary; None where those of a round are unknown."""
  rounds = [r for r in history if r['round']]
  start = {name: sum(r.get(f'start_{name}') or 0 for r in rounds) for name in _BYTES}
  totals: Record = {name: _total(rounds, name, start[name]) for name in _BYTES}
  totals['start'] = start
  if device_profile:
    totals['device_profile'] = device_profile
    totals['simulated_seconds'] = _total(rounds, 'simulated_seconds')
  return totals


def _total(rounds: Sequence[Record], name: str, start: float = 0) -> float | None:
  values = [r.get(name) for r in rounds]
  return None if None in values else start + sum(values)  # type: ignore[arg-type]
