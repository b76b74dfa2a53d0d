"""Memory that the process has freed but still holds."""

import contextlib
import ctypes
import sys


def give_back() -> None:
  """Gives freed memory back to the system, where glibc would keep it.

  It keeps the small pieces of which compilers need many, some 300 MiB after the
  programs of a run, and arrays of up to 32 MiB. The call takes milliseconds.
  """
  if sys.platform == 'linux':
    with contextlib.suppress(OSError, AttributeError):  # Another C library.
      ctypes.CDLL(None).malloc_trim(0)
