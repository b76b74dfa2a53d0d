"""Processes that hang are named, and all end."""

import os
import threading
import time

import pytest

from fesem_jax.utils import watchdog


class Store(dict):
  """JAX's key-value store."""

  def key_value_set(self, key, value, allow_overwrite):
    assert allow_overwrite
    self[key] = value

  def key_value_dir_get(self, prefix):
    return [(key, value) for key, value in self.items() if key.startswith(prefix)]


@pytest.mark.parametrize(
  ('behind', 'named'), [((), None), ((1,), '1'), ((0, 2), '0, 2')]
)
def test_a_process_that_stays_behind_ends_all(behind, named, monkeypatch, capsys):
  codes, store = [], Store()

  def leave(code):
    codes.append(code)
    threading.Event().wait()

  monkeypatch.setattr(os, '_exit', leave)
  monkeypatch.setattr(watchdog, '_POLL_SECONDS', 0.01)
  dogs = [watchdog.Watchdog(store, i, seconds=0.5) for i in range(3)]
  deadline = time.monotonic() + (5 if behind else 1)
  while len(codes) < 3 and time.monotonic() < deadline:
    for i, dog in enumerate(dogs):
      dog.meetings += i not in behind or dog.meetings < 2
    time.sleep(0.05)
  ended = [1] * 3 if behind else []
  lines = capsys.readouterr().err.splitlines()
  assert codes == ended
  assert all(line.startswith(f'error: process {named}: hangs') for line in lines)
  assert len(lines) == len(ended)
