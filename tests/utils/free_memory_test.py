import platform
import subprocess
import sys

import pytest

# Frees 1,000 pieces of 50 kB but the last, which keeps the heap from shrinking, and
# prints the bytes that `give_back` returns.
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
def test_freed_pieces_go_back_to_the_system(monkeypatch):
  monkeypatch.setenv('LD_PRELOAD', '')  # Other allocators give memory back themselves.
  printed = subprocess.check_output([sys.executable, '-c', _PROGRAM])
  assert int(printed) > 25_000_000
