"""Processes that hang are named, and all end."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from fesem_jax.utils import watchdog


@pytest.mark.parametrize(('behind', 'named'), [([], ''), ([1], '1'), ([0, 2], '0, 2')])
def test_a_process_that_stays_behind_ends_all(behind, named, monkeypatch, capsys):
  codes, meetings, store = [], [0] * 3, {}
  client = SimpleNamespace(
    key_value_set=lambda key, value, **_: store.update({key: value}),
    key_value_dir_get=lambda _: list(store.items()),
  )
  monkeypatch.setattr(os, '_exit', codes.append)
  monkeypatch.setattr(watchdog, '_POLL_SECONDS', 0.01)
  for i in range(3):
    watched = client, i, 0.5, lambda i=i: meetings[i]
    threading.Thread(target=watchdog.watch, args=watched, daemon=True).start()
  deadline = time.monotonic() + (5 if behind else 1)
  while len(codes) < 3 and time.monotonic() < deadline:
    # The others wait for those that stay behind.
    meetings = [min(n + 1, 2 if i in behind else 3) for i, n in enumerate(meetings)]
    time.sleep(0.05)
  lines = capsys.readouterr().err.splitlines()
  assert codes == [1] * len(lines) == ([1] * 3 if behind else [])
  assert all(line.startswith(f'error: process {named}: hangs') for line in lines)
