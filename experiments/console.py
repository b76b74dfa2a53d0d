"""The binaries as commands of the installed package: fesem-run and the others.

Each starts as `python -m experiments.NAME` does, so that both have the same flags,
help and endings.
"""

import runpy


def _start(name: str) -> None:
  runpy.run_module(f'experiments.{name}', run_name='__main__', alter_sys=True)


def run() -> None:
  """Runs one method on one data set."""
  _start('run')


def launch_local() -> None:
  """Runs one method in several processes on this machine."""
  _start('launch_local')


def compare() -> None:
  """Compares methods over seeds."""
  _start('compare')


def select_k() -> None:
  """Chooses the number of clusters."""
  _start('select_k')


def sweep() -> None:
  """Compares methods by the value of one flag."""
  _start('sweep')


def figures() -> None:
  """Draws the figures of finished runs."""
  _start('figures')


def export() -> None:
  """Writes one model of a finished run to a file."""
  _start('export')


def adapt() -> None:
  """Lets new clients join the clusters of finished runs."""
  _start('adapt')


def prepare_data() -> None:
  """Inspects, subsamples and converts federated data."""
  _start('prepare_data')


def plan() -> None:
  """Says what a run needs of chips that need not be there."""
  _start('plan')
