"""The commands of the installed package."""

import configparser
import importlib.util
import os
import pathlib
import runpy
import subprocess
import sys

import pytest

from experiments import console
from tests.support.nights import rest_by_night

_ROOT = pathlib.Path(console.__file__).parents[1]


def _scripts():
  """Name of each command -> what it calls, from setup.cfg."""
  parser = configparser.ConfigParser()
  parser.read(_ROOT / 'setup.cfg')
  lines = parser['options.entry_points']['console_scripts'].strip().splitlines()
  return dict(map(str.strip, line.split('=')) for line in lines)


@pytest.mark.parametrize(('name', 'called'), _scripts().items())
def test_each_command_starts_the_module_of_its_name(name, called, monkeypatch):
  started = []
  monkeypatch.setattr(runpy, 'run_module', lambda *args, **_: started.append(args[0]))
  module, function = called.split(':')
  assert module == 'fesem_jax.experiments.console'
  getattr(console, function)()
  assert name == f'fesem-{function.replace("_", "-")}'
  folder = 'reproductions' if function == 'reproduce' else 'experiments'
  assert started == [f'{folder}.{function}']
  assert importlib.util.find_spec(started[0]) is not None


def test_every_binary_is_a_command():
  binaries = {
    path.stem
    for folder in ('experiments', 'reproductions')
    for path in (_ROOT / folder).glob('*.py')
    if "if __name__ == '__main__':" in path.read_text()
  }
  assert {called.split(':')[1] for called in _scripts().values()} == binaries


@pytest.mark.parametrize(
  ('given', 'unbuffered'),
  rest_by_night([(['report', '--help'], ''), (['data'], '1')]),
)
def test_a_pipe_that_nobody_reads_ends_a_binary_without_a_word(given, unbuffered):
  name, *arguments = given
  read, write = os.pipe()
  os.close(read)
  done = subprocess.run(
    [sys.executable, '-m', f'experiments.{name}', *arguments], cwd=_ROOT,
    env=os.environ | {'PYTHONUNBUFFERED': unbuffered}, stdout=write,
    stderr=subprocess.PIPE, text=True, check=False,
  )  # fmt: skip
  os.close(write)
  assert (done.returncode, done.stderr) == (141, '')
