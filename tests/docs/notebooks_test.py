"""The manual's notebooks run, with small settings, and are kept without outputs."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest

import fesem_jax as fj
from fesem_jax.run import programs

_FOLDER = pathlib.Path(__file__).parents[2] / 'docs' / 'notebooks'
_NOTEBOOKS = sorted(_FOLDER.glob('*.ipynb'))

# In place of the values of the cell that is tagged `parameters`.
_SMALL = {'CLIENTS': 8, 'ROUNDS': 2, 'SEEDS': 1, 'EXAMPLES': 10}


def cells(path, kind='code'):
  return [c for c in json.loads(path.read_text())['cells'] if c['cell_type'] == kind]


def test_there_are_three_in_the_manual():
  assert len(_NOTEBOOKS) == 3
  nav = (_FOLDER.parents[1] / 'mkdocs.yml').read_text()
  for path in _NOTEBOOKS:
    assert f'notebooks/{path.stem}.md' in nav


@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_install_what_is_missing_and_hold_no_outputs(path):
  whole = json.loads(path.read_text())
  assert (whole['nbformat'], whole['nbformat_minor']) == (4, 5)
  ids = [cell['id'] for cell in whole['cells']]
  assert len(set(ids)) == len(ids)
  first, second, *_ = code = cells(path)
  assert 'find_spec' in ''.join(first['source'])
  assert 'pip' in ''.join(first['source'])
  assert '`make wheel`' in ''.join(first['source'])  # Before there is a release.
  assert 'import fesem_jax as fj\n\nfj.setup_devices()' in ''.join(second['source'])
  assert not any(c['outputs'] or c['execution_count'] for c in code)
  text = ''.join(line for c in code for line in c['source'])
  assert not re.search(r'^\s*[%!]', text, re.M)  # Plain Python anywhere.
  assert set(re.findall(r'\bfj\.(\w+)', text)) <= set(fj.__all__)


@pytest.mark.parametrize(
  'path',
  [
    pytest.param(
      path,
      id=path.stem,
      marks=[pytest.mark.nightly] * (path.stem != 'fesem_in_ten_minutes'),
    )
    for path in _NOTEBOOKS
  ],
)
def test_notebooks_run(path, monkeypatch, capsys):
  pytest.importorskip('matplotlib').use('agg')
  monkeypatch.setattr(fj, 'setup_devices', lambda: None)  # They are chosen already.
  held, replaced = {}, False
  for number, cell in enumerate(cells(path)):
    source = ''.join(cell['source'])
    if 'parameters' in cell['metadata'].get('tags', []):
      names = re.findall(r'^(\w+) = \d+$', source, re.M)
      assert len(names) == len(source.splitlines())
      source, replaced = '\n'.join(f'{n} = {_SMALL[n]}' for n in names), True
    exec(compile(source, f'{path.name}, code cell {number}', 'exec'), held)
  assert replaced
  programs.shared().clear()
  said = capsys.readouterr().out
  assert 'accuracy' in said


def test_a_page_of_the_manual_has_the_cells():
  pytest.importorskip('mkdocs')
  path = _FOLDER.parent / 'notebooks.py'
  spec = importlib.util.spec_from_file_location('notebooks', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  text = _NOTEBOOKS[0].read_text()
  page = module.as_markdown(text, 'x.ipynb')
  assert page.startswith('# FeSEM in ten minutes\n')
  assert '(./x.ipynb)' in page
  assert '(your_own_method.md)' in page
  assert page.count('```python\n') == len(cells(_NOTEBOOKS[0]))
  assert page.count('```') == 2 * len(cells(_NOTEBOOKS[0]))


@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize('package', ['fesem_jax[plots]', './fesem_jax-9-none-any.whl'])
def test_notebooks_install_the_package_that_is_named(path, package, monkeypatch):
  ran = []
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  monkeypatch.setattr(subprocess, 'run', lambda command, check: ran.append(command))
  source = ''.join(cells(path)[0]['source'])
  exec(source.replace("PACKAGE = 'fesem_jax[plots]'", f'PACKAGE = {package!r}'), {})
  assert ran == [[sys.executable, '-m', 'pip', 'install', '--quiet', package]]
