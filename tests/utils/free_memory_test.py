"""Freed memory goes back to the system."""

import ctypes
import pathlib
import platform

import pytest

from fesem_jax.utils import free_memory

SIZE, COUNT = 50_000, 1000


def resident():
  """Bytes of this process that are in memory."""
  return 4096 * int(pathlib.Path('/proc/self/statm').read_text().split()[1])


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='glibc alone keeps it')
def test_freed_pieces_go_back_to_the_system():
  libc = ctypes.CDLL(None)
  libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
  pieces = [libc.malloc(SIZE) for _ in range(COUNT)]
  for piece in pieces:
    ctypes.memset(piece, 1, SIZE)
  for piece in pieces[:-1]:  # The last one keeps the heap from shrinking.
    libc.free(piece)
  before = resident()
  free_memory.give_back()
  assert before - resident() > SIZE * COUNT / 2
  libc.free(pieces[-1])


def test_other_systems_are_left_alone(monkeypatch):
  monkeypatch.setattr(free_memory.sys, 'platform', 'darwin')
  monkeypatch.delattr(free_memory.ctypes, 'CDLL')
  free_memory.give_back()
