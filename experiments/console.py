"""The binaries as commands of the installed package: fesem-run and the others.

Each starts as `python -m experiments.NAME` does, so that both have the same flags,
help and endings.
"""

import functools
import runpy


def _start(name: str, folder: str = 'experiments') -> None:
  package = str(__package__).replace('experiments', folder)
  runpy.run_module(f'{package}.{name}', run_name='__main__', alter_sys=True)


run = functools.partial(_start, 'run')
launch_local = functools.partial(_start, 'launch_local')
compare = functools.partial(_start, 'compare')
select_k = functools.partial(_start, 'select_k')
sweep = functools.partial(_start, 'sweep')
figures = functools.partial(_start, 'figures')
export = functools.partial(_start, 'export')
replay = functools.partial(_start, 'replay')
separation = functools.partial(_start, 'separation')
adapt = functools.partial(_start, 'adapt')
prepare_data = functools.partial(_start, 'prepare_data')
report = functools.partial(_start, 'report')
plan = functools.partial(_start, 'plan')
port = functools.partial(_start, 'port')
reproduce = functools.partial(_start, 'reproduce', 'reproductions')
