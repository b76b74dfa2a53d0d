"""A system without POSIX, as Windows is, simulated by the absence of its modules."""

import subprocess
import sys

import pytest

from fesem_jax.run.workdir import locked
from fesem_jax.utils.errors import UserError


def test_the_package_is_imported_without_modules_of_posix():
  missing = (
    'import sys; sys.modules.update(fcntl=None, resource=None); import fesem_jax'
  )
  subprocess.run([sys.executable, '-W', 'ignore', '-c', missing], check=True)


def test_a_workdir_without_locks_is_refused_in_a_sentence(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'fcntl', None)
  sentence = 'use Linux, macOS or the Windows Subsystem'
  with pytest.raises(UserError, match=sentence), locked(tmp_path / 'run'):
    pass
