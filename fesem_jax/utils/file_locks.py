"""Locks of files, which Windows does not have."""

from types import ModuleType

from fesem_jax.utils.errors import UserError


def module() -> ModuleType:
  """The module `fcntl`; raises `UserError` where the system has none."""
  try:
    import fcntl  # Not on Windows, where all that writes no workdir still works.
  except ImportError as e:
    raise UserError(
      'This system has no locks of files, which workdirs and caches need; use Linux, '
      'macOS or the Windows Subsystem for Linux (WSL).'
    ) from e
  return fcntl
