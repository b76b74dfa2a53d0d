"""The recipes of docs/recipes run by themselves and use the public API alone."""

import pathlib
import re
import subprocess
import sys

import pytest

import fesem_jax as fj

_RECIPES = sorted((pathlib.Path(__file__).parents[2] / 'docs' / 'recipes').glob('*.py'))

# Recipe -> settings with which it takes seconds.
_SMALL = {'separation': ['--num_clients=12', '--num_clusters=2,4']}


@pytest.mark.parametrize('path', _RECIPES, ids=lambda path: path.stem)
@pytest.mark.nightly
def test_recipes_run(path, tmp_path):
  source = path.read_text()
  assert re.findall(r'^ *(?:import|from) fesem_jax.*', source, re.M) == [
    'import fesem_jax as fj'
  ]
  assert set(re.findall(r'\bfj\.(\w+)', source)) <= set(fj.__all__)
  command = [sys.executable, str(path), *_SMALL.get(path.stem, [])]
  done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert done.stdout
