"""The manual's notebooks run, with small settings, and are kept without outputs."""

import importlib.util
import json
import pathlib
import re

import pytest

import fesem_jax as fj
from fesem_jax.run import programs

_FOLDER = pathlib.Path(__file__).parents[2] / 'docs' / 'notebooks'
_NOTEBOOKS = sorted(_FOLDER.glob('*.ipynb'))

# In place of the values of the cell that is tagged `parameters`.
_SMALL = {'CLIENTS': 8, 'ROUNDS': 2, 'SEEDS': 1, 'EXAMPLES': 10}


def cells(path, kind='code'):
  return [c for c in json.loads(path.read_text())['cells'] if c['cell_type'] == kind]


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


# By day `make docs` runs them.
@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.nightly
def test_notebooks_run(path, monkeypatch):
  pytest.importorskip('matplotlib').use('agg')
  monkeypatch.setattr(fj, 'setup_devices', lambda: None)  # They are chosen already.
  shown = hook().outputs(path.read_text(), _SMALL)
  programs.clear()
  kinds = [kind for of_cell in shown for kind, _ in of_cell]
  assert 'accuracy' in str(shown)
  assert kinds.count('png') == 1
  assert {'text', 'png'} <= set(kinds)


def hook():
  """The module that makes pages of notebooks."""
  spec = importlib.util.spec_from_file_location('x', _FOLDER.parent / 'notebooks.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_a_page_of_the_manual_has_the_cells_and_their_outputs():
  path = _NOTEBOOKS[0]
  count = len(cells(path))
  shown = [[('text', f'a<b {i}\n\nc'), ('png', 'AAAA')] for i in range(count)]
  page = hook().as_markdown(path.read_text(), 'x.ipynb', shown)
  assert page.startswith('# FeSEM in ten minutes\n')
  assert '(./x.ipynb)' in page
  assert '(your_own_method.md)' in page
  assert page.count('```python\n') == count
  assert page.count('```') == 2 * count
  assert '<div class="output"><pre>a&lt;b 3\n&#8203;\nc</pre></div>' in page
  assert page.count('src="data:image/png;base64,AAAA"') == count
