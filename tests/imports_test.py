"""Imports: packages import one way, and a run imports only what it needs."""

import ast
import pathlib
import subprocess
import sys

import fesem_jax

_ROOT = pathlib.Path(fesem_jax.__file__).parent

# What each package may import beside itself.
_BASE = {'core', 'tasks', 'utils'}
_TRAINING = _BASE | {'data', 'models', 'training'}
_METHODS = _TRAINING | {'server'}
_WATCHING = _TRAINING | {'evaluation', 'run.callbacks', 'run.results'}
_RUN = _METHODS | _WATCHING | {'algorithms', 'checks', 'run'}
MAY_IMPORT = {
  'utils': set(), 'tasks': {'utils'}, 'core': {'tasks', 'utils'}, 'checks': _BASE,
  'data': _BASE | {'checks'}, 'models': _BASE | {'data'}, 'training': _TRAINING,
  'server': _TRAINING, 'evaluation': _TRAINING,
  'algorithms': _METHODS, 'run.results': _BASE | {'data', 'evaluation', 'models'},
  'run.callbacks': _WATCHING, 'run': _RUN, 'analysis': _RUN,
  'analysis.report': _RUN | {'analysis', 'plots'}, 'testing': _BASE,
  'plots': {'analysis', 'data', 'evaluation', 'run.results', 'tasks', 'utils'},
}  # fmt: skip

# Each takes between 20 ms and a second to import.
USED_LATER = {
  'PIL', 'altair', 'datasets', 'h5py', 'jinja2', 'matplotlib', 'orbax',
  'pandas', 'pyarrow', 'scipy', 'sklearn', 'tensorboardX', 'tensorflow_datasets',
  'tensorstore', 'vl_convert', 'wandb',
}  # fmt: skip


def _modules():
  """Dotted name of each module -> its file; a package's name stands for its face."""
  result = {}
  for path in _ROOT.rglob('*.py'):
    parts = path.relative_to(_ROOT.parent).with_suffix('').parts
    if 'experiments' not in parts:
      result['.'.join(parts).removesuffix('.__init__')] = path
  return result


def _imports():
  """Dotted name of each module -> modules of the project that it imports."""
  modules = _modules()
  graph = {}
  for name, path in modules.items():
    graph[name] = set()
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom) and node.module in modules:
        for alias in node.names:
          inner = f'{node.module}.{alias.name}'
          graph[name].add(inner if inner in modules else node.module)
  return graph


def _package(module):
  one, two = (*module.split('.')[1:3], '', '')[:2]
  return f'{one}.{two}' if f'{one}.{two}' in MAY_IMPORT else one


def test_packages_import_one_way():
  wrong = [
    f'{name} imports {other}'
    for name, others in _imports().items()
    for other in others
    if _package(name) and _package(other) not in MAY_IMPORT[_package(name)]
    if _package(other) != _package(name)
  ]
  assert not wrong, '\n'.join(wrong)


def test_no_modules_import_each_other_in_a_circle():
  graph, done = _imports(), set()

  def visit(name, path):
    assert name not in path, ' -> '.join([*path[path.index(name) :], name])
    if name not in done:
      for other in sorted(graph[name]):
        visit(other, [*path, name])
      done.add(name)

  for name in sorted(graph):
    visit(name, [])


def test_the_run_binary_imports_nothing_slow_that_it_may_not_need():
  command = [sys.executable, '-X', 'importtime', '-m', 'experiments.run', '--help']
  done = subprocess.run(command, check=True, capture_output=True, text=True)
  lines = [line for line in done.stderr.splitlines() if line.startswith('import time:')]
  imported = {line.rpartition('|')[2].strip() for line in lines}
  assert {'fesem_jax', 'fesem_jax.data.sources', 'fesem_jax.run.checkpoint'} <= imported
  assert not USED_LATER & {name.partition('.')[0] for name in imported}
  assert not [name for name in imported if name.startswith('fesem_jax.run.planner')]
