"""Ends all processes of a run when one of them hangs.

JAX notices a process that has died, but not one that is stuck. Each process counts its
meetings, the places where it waits for the others; one that stays behind is stuck.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

_POLL_SECONDS = 1.0
_FOLDER = 'fesem_jax/meetings/'


def watch(
  client: Any, process_id: int, seconds: float, meetings: Callable[[], int]
) -> None:
  """Compares the meetings of all processes, by JAX's key-value store, until the end."""
  behind, since = dict[int, int](), time.monotonic()
  while not behind or time.monotonic() - since < seconds:
    time.sleep(_POLL_SECONDS)
    try:
      key = f'{_FOLDER}{process_id}'
      client.key_value_set(key, str(meetings()), allow_overwrite=True)
      entries = client.key_value_dir_get(_FOLDER)
    except RuntimeError:  # The run is over.
      return
    counts = {int(key.rpartition('/')[2]): int(count) for key, count in entries}
    late = {i: n for i, n in counts.items() if n < max(counts.values())}
    if late != behind:
      behind, since = late, time.monotonic()
  names = ', '.join(map(str, sorted(behind)))
  text = (
    f'error: process {names}: hangs for {seconds / 60:g} minutes; repeat the command'
  )
  print(text, file=sys.stderr, flush=True)
  # All print it before the first one ends; JAX aborts those that outlive process 0.
  time.sleep(_POLL_SECONDS * (3 if process_id else 4))
  os._exit(1)
