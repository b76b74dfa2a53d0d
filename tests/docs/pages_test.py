"""The manual's programs run as they stand there, and what it names exists."""

import functools
import importlib
import importlib.util
import inspect
import pathlib
import re
import types

import pytest

import fesem_jax
from experiments import start
from tests.experiments.flags_test import flags_of_binaries
from tests.support.commands import run_script

_ROOT = pathlib.Path(__file__).parents[2]
_PAGES = [_ROOT / 'README.md', *sorted((_ROOT / 'docs').rglob('*.md'))]
_BLOCK = re.compile(r'^```python(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
_WITH_PROGRAMS = [page for page in _PAGES if _BLOCK.search(page.read_text())]


def program(text):
  """The page's blocks as one program, each on the lines where the page has it.

  Those with a title are added to the file of that name.
  """
  lines = [''] * (text.count('\n') + 1)
  for block in _BLOCK.finditer(text):
    title, source = block.groups()
    first = text.count('\n', 0, block.start(2))
    if title:
      lines[first] = f'with open({title!r}, "a") as f: f.write({source!r})'
    else:
      lines[first : first + source.count('\n')] = source.splitlines()
  return '\n'.join(lines)


def run_page(page, text, folder):
  script = folder / page.with_suffix('.py').name
  script.write_text(program(text))
  return run_script(script, cwd=folder)


@pytest.mark.nightly
@pytest.mark.parametrize('page', _WITH_PROGRAMS, ids=lambda page: page.stem)
def test_programs_of_a_page_run_in_an_empty_folder(page, tmp_path):
  done = run_page(page, page.read_text(), tmp_path)
  assert done.returncode == 0, done.stderr


@functools.cache
def _flags_of_binaries():
  folders = 'experiments', 'reproductions', 'benchmarks', 'studies'
  names = flags_of_binaries(*(_ROOT / folder for folder in folders))
  return names | {'flagfile', 'help', 'algorithms'}


@pytest.mark.parametrize('page', _PAGES, ids=lambda page: page.stem)
def test_flags_and_presets_that_a_page_names_exist(page):
  text = page.read_text()
  named = set(re.findall(r'(?<![\w-])--([a-z][a-z0-9_]*)', text))
  of_others = {'constraint', 'editable', 'helpfull', 'strict'}
  # Of Slurm and Google Cloud.
  of_others |= {'nodes', 'ntasks', 'gpus', 'kill', 'signal', 'worker', 'command'}
  of_others |= {'require'}  # Of pip.
  of_others |= {'xla_gpu_enable_triton_gemm'}  # Of XLA.
  assert named - of_others <= _flags_of_binaries()
  presets = set(re.findall(r'--flagfile=(?:experiments/presets/)?([\w/]+)', text))
  assert presets - {'NAME'} <= set(start.preset_names())


@pytest.mark.parametrize('name', ['README.md', 'WORKSPACE.md', 'CONTRIBUTING.md'])
def test_links_outside_of_the_manual_lead_to_files(name):
  links = re.findall(r'\]\(([^)#\s]+)[^)]*\)', (_ROOT / name).read_text())
  missing = [x for x in links if not x.startswith('http') and not (_ROOT / x).exists()]
  assert not missing


_API_PAGES = sorted((_ROOT / 'docs' / 'api').glob('*.md'))


def _directives(page):
  """Names whose docstrings a page of the API shows."""
  return re.findall(r'^::: ([\w.]+)$', page.read_text(), re.M)


def _named(path):
  """What Python has under a dotted name; modules are imported on the way."""
  value, *names = path.split('.')
  value = importlib.import_module(value)
  for i, name in enumerate(names, start=2):
    if not hasattr(value, name) and inspect.ismodule(value):
      importlib.import_module('.'.join(path.split('.')[:i]))
    if not hasattr(value, name):  # A function stands where its module did.
      value = importlib.import_module('.'.join(path.split('.')[: i - 1]))
    value = getattr(value, name)
  return value


def _public():
  """Every public function and type, by a name under which a user finds it."""
  pytest.importorskip('matplotlib')
  modules = {
    'fesem_jax': fesem_jax.__all__,
    'fesem_jax.data': fesem_jax.data.__all__,
    'fesem_jax.plots': importlib.import_module('fesem_jax.plots').__all__,
    'fesem_jax.algorithms': ['build', 'options', *fesem_jax.algorithms.METHODS],
    'fesem_jax.models': [
      name
      for name, value in vars(fesem_jax.models).items()
      if inspect.isfunction(value)
      and value.__module__ == 'fesem_jax.models'
      and not name.startswith('_')
    ],
  }
  names = {f'{module}.{name}' for module, of in modules.items() for name in of}
  names -= {'fesem_jax.algorithms.fesem_ma'}  # FeSEM with one of its options.
  return {
    name
    for name in names
    if callable(_named(name)) and not inspect.ismodule(_named(name))
  }


def test_the_api_names_everything_that_is_public():
  listed = [id(_named(name)) for page in _API_PAGES for name in _directives(page)]
  assert len(listed) == len(set(listed))  # Each on one page.
  missing = [name for name in sorted(_public()) if id(_named(name)) not in listed]
  assert not missing, 'Add to a page of docs/api as `::: NAME`.'
  names = [name for page in _API_PAGES for name in _directives(page)]
  assert not [name for name in names if not _named(name).__doc__]


def test_no_public_function_has_more_than_9_parameters():
  """The options of a method do not count: each is a flag, with a default of its own."""
  methods = [inspect.unwrap(f) for f in fesem_jax.algorithms.METHODS.values()]
  named = {
    f'fesem_jax.{value.__name__}': value
    for page in _API_PAGES
    for value in map(_named, _directives(page))
    if inspect.isfunction(value)
  }
  counts = {
    name: len(inspect.signature(value).parameters)
    for name, value in named.items()
    if inspect.unwrap(value) not in methods
  }
  assert len(counts) > 50
  many = {'simulate': 16, 'from_arrays': 11, 'compare': 10}
  many |= {'train_cohort': 10, 'for_each_client': 10}
  assert {name: n for name, n in counts.items() if n > 9} == {
    f'fesem_jax.{name}': n for name, n in many.items()
  }
  assert counts['fesem_jax.local_training'] <= 7


@functools.cache
def _equations() -> types.ModuleType:
  for needed in ('griffe', 'matplotlib'):
    pytest.importorskip(needed)
  return _hook('equations')


def _hook(name: str) -> types.ModuleType:
  spec = importlib.util.spec_from_file_location(name, _ROOT / f'docs/{name}.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


_TEX = re.compile(r'\$\$(.+?)\$\$|\$(.+?)\$', re.S)


@pytest.mark.nightly
@pytest.mark.parametrize('page', _PAGES, ids=lambda page: page.stem)
def test_equations_of_a_page_can_be_drawn_and_shown(page):
  code = r'^```.*?^```$|`[^`]*`'
  text = re.sub(code, '', page.read_text(), flags=re.M | re.S)
  equations = [block or inline for block, inline in _TEX.findall(text)]
  assert len(equations) > 80 or page != _ROOT / 'docs' / 'methods.md'
  for tex in equations:
    # A repository's web view takes a backslash before punctuation for its own, and a
    # bar for the end of a table's cell.
    assert not re.search(r'\\[^\w\s]|[|*]', tex), tex
    svg = _equations().drawn(tex)
    left, top, width, height = map(float, re.search(r'viewBox="(.*?)"', svg)[1].split())
    path = re.search(r' d="(.*?)"', svg)[1]
    xy = [float(x) for x in re.findall(r'-?\d+', path)]
    margin = 130  # Of an em, 1000; letters lean out of their boxes.
    assert left - margin <= min(xy[::2])
    assert max(xy[::2]) <= left + width + margin
    assert max(xy[::2]) - min(xy[::2]) > 0.4 * width  # They fill the width.
    assert top - margin <= min(xy[1::2])
    assert max(xy[1::2]) <= top + height + margin


def test_every_method_has_its_section_and_equation():
  text = (_ROOT / 'docs' / 'methods.md').read_text()
  sections = re.split(r'^### ', text, flags=re.M)[1:]
  for name in fesem_jax.algorithms.METHODS:
    of = [section for section in sections if f'`--algorithm={name}`' in section]
    assert len(of) == 1, name
    assert r'\leftarrow' in of[0], name


def test_every_method_is_in_the_tables_of_families_and_of_costs():
  text = (_ROOT / 'docs' / 'methods.md').read_text()
  families = text.split('## Families')[1].split('\n## ')[0]
  linked = re.findall(r'\]\(#([\w-]+)\)', families)
  titles = re.findall(r'^### (.*)$', text, re.M)
  anchors = [re.sub(r'[^\w-]', '', title.lower().replace(' ', '-')) for title in titles]
  anchors.remove('server-optimizers')
  assert sorted(linked) == sorted(anchors)
  costs = (_ROOT / 'docs' / 'costs.md').read_text()
  first = [row.split('|')[1] for row in costs.splitlines() if row.startswith('| `')]
  named = [name for cell in first for name in re.findall(r'`(\w+)`', cell)]
  methods = [name for name in named if name in fesem_jax.algorithms.METHODS]
  assert len(methods) == len(set(methods)) > 30
