"""Files and functions stay short enough to be read at once."""

import ast
import inspect
import pathlib

from fesem_jax import algorithms

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ('fesem_jax', 'experiments', 'reproductions', 'benchmarks', 'studies')
FILES = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob('*.py'))]

# Options of the public functions, and what a file of results is made of.
MANY_PARAMETERS = {
  'simulate', 'kmeans', 'separation', 'from_arrays', 'map_clients', 'summary', 'make',
  'for_each_client', 'train_cohort', 'fesem', 'fed_cluster', 'robust',
}  # fmt: skip


def functions(path):
  """Pairs of place and node of the functions of a file, nested ones too."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
      yield f'{path.relative_to(ROOT)}:{node.lineno}:{node.name}', node


def test_no_file_of_a_method_is_long():
  factories = map(inspect.unwrap, algorithms.METHODS.values())
  files = {inspect.getsourcefile(factory) for factory in factories}
  lines = {f: pathlib.Path(f).read_text().count('\n') for f in files}
  # The file of FeSEM also lists its 18 options.
  most = {f: 197 if f.endswith('/fesem.py') else 152 for f in lines}
  assert {f: n for f, n in lines.items() if n > most[f]} == {}
  assert len(lines) > 30


def test_no_function_has_more_than_100_lines():
  lines = {name: f.end_lineno - f.lineno + 1 for p in FILES for name, f in functions(p)}
  assert {name: n for name, n in lines.items() if n > 100} == {}
  assert len(lines) > 1000


def test_no_function_has_more_than_8_parameters():
  counts = {
    name: len(f.args.posonlyargs + f.args.args + f.args.kwonlyargs)
    for p in FILES
    for name, f in functions(p)
  }
  many = {name.split(':')[2] for name, n in counts.items() if n > 8}
  assert many == MANY_PARAMETERS
