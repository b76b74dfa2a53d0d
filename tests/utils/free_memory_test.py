"""Freed memory goes back to the system."""

import os
import platform
import subprocess
import sys

import pytest

from fesem_jax.utils import free_memory
from tests.support.commands import ROOT

# Frees 1,000 pieces of 50 kB, but for the last, which keeps the heap from shrinking.
# Prints the bytes that the process then gives back.
_PROGRAM = """
import ctypes, pathlib
from fesem_jax.utils import free_memory

def resident():
  return 4096 * int(pathlib.Path('/proc/self/statm').read_text().split()[1])

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(50_000) for _ in range(1000)]
for piece in pieces:
  ctypes.memset(piece, 1, 50_000)
for piece in pieces[:-1]:
  libc.free(piece)
before = resident()
free_memory.give_back()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='glibc alone keeps it')
def test_freed_pieces_go_back_to_the_system():
  # The tests may run with another allocator, which gives memory back by itself.
  environment = {**os.environ, 'LD_PRELOAD': ''}
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
  )  # fmt: skip
  assert int(done.stdout) > 25_000_000


def test_other_systems_are_left_alone(monkeypatch):
  monkeypatch.setattr(free_memory.sys, 'platform', 'darwin')
  monkeypatch.delattr(free_memory.ctypes, 'CDLL')
  free_memory.give_back()
