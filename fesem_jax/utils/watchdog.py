"""Ends all processes of a run when one of them hangs.

JAX notices a process that has died, but not one that is alive and stuck: the others
wait for it forever. Each process counts the places where it meets the others; one that
stays behind them for too long is stuck.
"""

import os
import sys
import threading
import time
from typing import Any

_POLL_SECONDS = 1.0
_FOLDER = 'fesem_jax/meetings/'


class Watchdog:
  """A thread that compares the meetings of all processes, by JAX's key-value store."""

  def __init__(self, client: Any, process_id: int, seconds: float):
    self.meetings = 0
    self.ends = threading.Event()
    self._client, self._process_id, self._seconds = client, process_id, seconds
    threading.Thread(target=self._watch, daemon=True).start()

  def _watch(self) -> None:
    behind, since = dict[int, int](), time.monotonic()
    while not behind or time.monotonic() - since < self._seconds:
      time.sleep(_POLL_SECONDS)
      try:
        key = f'{_FOLDER}{self._process_id}'
        self._client.key_value_set(key, str(self.meetings), allow_overwrite=True)
        entries = self._client.key_value_dir_get(_FOLDER)
      except RuntimeError:  # The run is over.
        return
      counts = {int(key.rpartition('/')[2]): int(count) for key, count in entries}
      late = {i: n for i, n in counts.items() if n < max(counts.values())}
      if late != behind:
        behind, since = late, time.monotonic()
    self.ends.set()
    names = ', '.join(map(str, sorted(behind)))
    print(
      f'error: process {names}: hangs for {self._seconds / 60:g} minutes; '
      'run the same command again to resume',
      file=sys.stderr, flush=True,
    )  # fmt: skip
    # All print it before the first one ends; JAX aborts what outlives process 0.
    time.sleep(_POLL_SECONDS * (3 if self._process_id else 5))
    os._exit(1)
