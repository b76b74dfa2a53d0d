"""The binaries as commands of the installed package: fesem-run and the others."""

import functools
import runpy
from collections.abc import Callable

_BESIDE = {'reproduce': 'reproductions'}  # Folders of binaries that are not here.


def _start(name: str) -> None:
  package = str(__package__).replace('experiments', _BESIDE.get(name, 'experiments'))
  runpy.run_module(f'{package}.{name}', run_name='__main__', alter_sys=True)


def __getattr__(name: str) -> Callable[[], None]:
  """The function that starts a binary; setup.cfg has their names."""
  if name.startswith('_'):
    raise AttributeError(name)
  return functools.partial(_start, name)
