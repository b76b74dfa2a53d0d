"""Mutation testing: which one-word changes of the code do the tests notice?

  python -m tests.mutation --sample=300 --seed=0 --json=FILE
      [--workers=2] [--only=fesem_jax/em.py] [--tests=em,tree] [--seconds=240]
      [--again=FILE]

Changes one operator, comparison, constant, boolean or argument at a time in the files
of `TESTS` and runs the tests listed there for that file, those that run the changed
line, the quickest first, until one fails. Files on disk are never changed: a parent
that has imported JAX, but neither `fesem_jax` nor a backend, forks a child for each
mutant, which imports the changed source and runs pytest within itself.

First every listed test runs once on the code as it is, to see which lines it runs and
how long it takes (minutes; kept in .pytest_cache/mutation until a file changes).
Tests that fail there are named and left out. Programs that a mutant leaves as they
are come from JAX's cache on disk; new ones are compiled without XLA's optimizations
and not kept.

A mutant is caught if a test fails or hangs. One that passes `--seconds` of tests
counts as survived. `mutation_equivalents.json` lists mutants that no test could
catch, each with the reason; they are counted apart and not run. They are known by
file, function and text, so that they outlast changes elsewhere in the file. --again
runs the survivors of an earlier report only.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
EQUIVALENTS = ROOT / 'tests' / 'mutation_equivalents.json'
KEPT = ROOT / '.pytest_cache' / 'mutation'

_METHODS = (
  'algorithms', 'centers', 'ditto', 'fed_avg', 'fed_cluster', 'fed_dane', 'fed_dist',
  'fed_opt', 'fed_per', 'fed_prox', 'fed_sgd', 'fesem', 'fesem_streamed',
  'hypo_cluster', 'identities', 'kmeans', 'memory', 'non_fed', 'options',
  'participation', 'planted', 'properties', 'robust', 'scaffold', 'start',
)  # fmt: skip
_LOCAL = (
  'local', 'local_step', 'batching', 'evaluate', 'isolation', 'losses', 'mixture',
  *_METHODS,
)  # fmt: skip
# File -> the tests that are to catch its mutants, NAME for tests/NAME_test.py.
TESTS = {
  'fesem_jax/batching.py': ('placement', *_LOCAL),
  'fesem_jax/chunks.py': ('chunks', *_LOCAL),
  'fesem_jax/em.py': ('em', 'sums', *_METHODS),
  'fesem_jax/evaluate.py': ('evaluate', *_METHODS),
  'fesem_jax/evenly.py': ('placement',),
  'fesem_jax/kmeans.py': _METHODS,
  'fesem_jax/local.py': _LOCAL,
  'fesem_jax/local_sgd.py': ('lr_schedule', *_LOCAL),
  'fesem_jax/losses.py': _LOCAL,
  'fesem_jax/method.py': _LOCAL,
  'fesem_jax/mixture.py': _LOCAL,
  'fesem_jax/sampling.py': ('sampling', 'placement', *_METHODS),
  'fesem_jax/server.py': _METHODS,
  'fesem_jax/sums.py': ('sums', 'em', *_METHODS),
  'fesem_jax/training.py': ('lr_schedule', 'options', *_LOCAL),
  'fesem_jax/tree.py': ('tree', 'em', 'local', 'sums', 'accelerator', *_METHODS),
} | {
  f'fesem_jax/algorithms/{path.name}': _METHODS
  for path in sorted((ROOT / 'fesem_jax' / 'algorithms').glob('*.py'))
}

# Assignments that are about speed only, and keywords that are about precision.
_SPEED = {'_LANES', '_TERMS', '_LARGE', '_ROWS_AT_ONCE', '_NUMBERS_AT_ONCE',
          'EVALUATION_BATCH', 'GRAM_CLIENTS', 'GRAM_CLIENTS_PER_CLUSTER',
          'MAX_INITIAL_CLIENTS', '_HIGHEST'}  # fmt: skip
_NOT_DROPPED = {'precision', 'mesh', 'strict'}
# Calls whose arguments may change places.
_SYMMETRIC = {'maximum', 'minimum', 'add', 'max', 'min', 'lcm'}

_OPERATORS = {
  ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
  ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
  ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
  ast.RShift: ast.LShift,
}  # fmt: skip
_COMPARISONS = {
  ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
  ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
  ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
  ast.NotIn: (ast.In,),
}  # fmt: skip
_NAMES = {'min': 'max', 'max': 'min', 'argmin': 'argmax', 'argmax': 'argmin',
          'any': 'all', 'all': 'any', 'minimum': 'maximum', 'maximum': 'minimum',
          'add': 'subtract', 'subtract': 'add', 'sum': 'mean',
          'mean': 'sum'}  # fmt: skip


class Mutant(NamedTuple):
  """One change of one file.

  Attributes:
    file: path below the root.
    function: dotted name of what encloses the change; '' for the module.
    number: which of the file's changes this is.
    lines: first and last line of the changed statement, or of a block's head.
    scope: first and last line of the function.
    before: source text around the change.
    after: the same text with the change.
  """

  file: str
  function: str
  number: int
  lines: tuple[int, int]
  scope: tuple[int, int]
  before: str
  after: str

  def key(self) -> tuple[str, str, str, str]:
    """What the list of equivalent mutants knows it by."""
    return self.file, self.function, self.before, self.after


class _Place(NamedTuple):
  """A node of the syntax tree and what encloses it."""

  node: ast.AST
  parents: tuple[ast.AST, ...]  # The innermost last.


def _places(node: ast.AST, parents: tuple[ast.AST, ...] = ()) -> Iterator[_Place]:
  """All nodes that may be changed, without type hints and error texts."""
  if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
    return
  if isinstance(node, ast.Assign) and _SPEED & {ast.unparse(t) for t in node.targets}:
    return
  yield _Place(node, parents)
  for field, value in ast.iter_fields(node):
    if field in ('annotation', 'returns', 'decorator_list', 'bases'):
      continue
    for child in value if isinstance(value, list) else [value]:
      if isinstance(child, ast.AST):
        yield from _places(child, (*parents, node))


def _edits(place: _Place) -> Iterator[tuple[ast.AST, str, Any]]:
  """(node, field, new value) of each change at a place."""
  node = place.node
  parent = place.parents[-1] if place.parents else None
  if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
    yield node, 'op', _OPERATORS[type(node.op)]()
  if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
    yield node, 'op', _OPERATORS[type(node.op)]()
  if isinstance(node, ast.Compare):
    for i, op in enumerate(node.ops):
      for other in _COMPARISONS[type(op)]:
        yield node, 'ops', [*node.ops[:i], other(), *node.ops[i + 1 :]]
  if isinstance(node, ast.BoolOp):
    yield node, 'op', ast.Or() if isinstance(node.op, ast.And) else ast.And()
  if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
    for field, value in ast.iter_fields(parent):  # Without the operator.
      if value is node:
        yield parent, field, node.operand
      elif isinstance(value, list) and any(v is node for v in value):
        yield parent, field, [node.operand if v is node else v for v in value]
  branches = isinstance(node, ast.If | ast.IfExp | ast.While)
  if branches and not isinstance(node.test, ast.Compare):
    yield node, 'test', ast.UnaryOp(ast.Not(), node.test)
  if isinstance(node, ast.Constant):
    if isinstance(node.value, bool):
      yield node, 'value', not node.value
    elif isinstance(node.value, int):
      yield node, 'value', node.value + 1
      if node.value > 0:
        yield node, 'value', node.value - 1
    elif isinstance(node.value, float):
      yield node, 'value', 2 * node.value or 1.0
  if isinstance(node, ast.Attribute) and node.attr in _NAMES:
    yield node, 'attr', _NAMES[node.attr]
  if isinstance(node, ast.Call):
    name = ast.unparse(node.func).rpartition('.')[2]
    # In longer calls nearly every exchange is an error of types.
    few = len(node.args) <= 3 and name not in _SYMMETRIC
    for i, (a, b) in enumerate(zip(node.args, node.args[1:], strict=False)):
      starred = isinstance(a, ast.Starred) or isinstance(b, ast.Starred)
      if few and not starred and ast.dump(a) != ast.dump(b):
        yield node, 'args', [*node.args[:i], b, a, *node.args[i + 2 :]]
    for keyword in node.keywords:
      if keyword.arg and keyword.arg not in _NOT_DROPPED:
        rest = [k for k in node.keywords if k is not keyword]
        yield node, 'keywords', rest


def _text(node: ast.AST) -> str:
  """Source of a node on one line."""
  return ' '.join(ast.unparse(node).split())


def _head(statement: ast.stmt) -> tuple[int, int]:
  """First and last line of a statement, of a block's head only."""
  body = getattr(statement, 'body', None)
  last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
  return statement.lineno, max(last, statement.lineno)


def _changed(file: str, number: int) -> tuple[ast.Module, _Place, ast.AST, str, Any]:
  """The tree of a file, and change `number` of it, not yet made."""
  tree = ast.parse((ROOT / file).read_text())
  edits = ((place, edit) for place in _places(tree) for edit in _edits(place))
  place, edit = next(e for i, e in enumerate(edits) if i == number)
  return tree, place, *edit


def mutants_of(file: str) -> list[Mutant]:
  """Every change of a file."""
  tree = ast.parse((ROOT / file).read_text())
  out = []
  edits = [(place, *edit) for place in _places(tree) for edit in _edits(place)]
  for number, (place, node, field, new) in enumerate(edits):
    parents = (*place.parents, place.node)
    names = ast.FunctionDef | ast.ClassDef
    function = '.'.join(p.name for p in parents if isinstance(p, names))
    functions = [p for p in parents if isinstance(p, ast.FunctionDef)]
    statement = [p for p in parents if isinstance(p, ast.stmt)][-1]
    # Enough of the expression around it to say which one it is.
    context = node
    for parent in reversed(place.parents):
      if isinstance(context, ast.expr) and len(_text(context)) >= 30:
        break
      if isinstance(parent, ast.mod) or hasattr(parent, 'body'):
        break
      context = parent
      if context is statement:
        break
    lines = _head(statement)
    if isinstance(context, ast.If | ast.While):
      context = ast.Expr(context.test)
    old, before = getattr(node, field), _text(context)
    setattr(node, field, new)
    after = _text(
      ast.Expr(node.test) if isinstance(node, ast.If | ast.While) else context
    )
    setattr(node, field, old)
    scope = (1, (len(tree.body) and tree.body[-1].end_lineno) or 1)
    if functions:
      scope = (functions[-1].lineno, functions[-1].end_lineno or 1)
    out.append(Mutant(file, function, number, lines, scope, before, after))
  return out


class _Mutated(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
  """Finds and loads one module, from a changed tree."""

  def __init__(self, name: str, file: str, tree: ast.Module | None):
    super().__init__(name, str(ROOT / file))
    self.tree = tree

  def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
    if fullname != self.name:
      return None
    package = [str(pathlib.Path(self.path).parent)]
    return importlib.util.spec_from_file_location(
      fullname,
      self.path,
      loader=self,
      submodule_search_locations=package if self.path.endswith('__init__.py') else None,
    )

  def get_code(self, fullname: str) -> Any:
    source = (ROOT / self.path).read_text()
    tree = ast.parse(source) if self.tree is None else self.tree
    return compile(ast.fix_missing_locations(tree), self.path, 'exec')


def _module(file: str) -> str:
  return file.removesuffix('.py').replace('/', '.').removesuffix('.__init__')


# Running tests in a child.


def _import_the_rest() -> None:
  """Imports what the tests need, but nothing of ours, and starts no backend."""
  os.environ['HYPOTHESIS_STORAGE_DIRECTORY'] = tempfile.mkdtemp()
  os.environ['PYTHONDONTWRITEBYTECODE'] = '1'
  import flax.linen  # noqa: F401
  import jax
  import jax.experimental.pallas  # noqa: F401
  import numpy  # noqa: F401
  import optax  # noqa: F401
  import orbax.checkpoint  # noqa: F401
  import scipy.cluster.hierarchy
  import scipy.stats  # noqa: F401
  import sklearn.cluster
  import sklearn.metrics  # noqa: F401
  from jax._src import xla_bridge

  ours = [name for name in sys.modules if name.partition('.')[0] == 'fesem_jax']
  if ours or xla_bridge.backends_are_initialized():
    raise RuntimeError(f'The parent must import none of ours: {ours}.')


def _files(names: Iterable[str]) -> list[str]:
  """The test files, below the root."""
  return [f'tests/{name}_test.py' for name in names]


def _pytest(files: list[str], plugin: Any) -> int:
  options = ['-x', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', '--tb=short']
  if isinstance(plugin, _Lines):
    options.remove('-x')
  return int(pytest.main([*options, *files], plugins=[plugin]))


class _Lines:
  """Pytest plugin: which lines of our files each test runs, and how long it takes."""

  def __init__(self) -> None:
    self.paths = {str(ROOT / file): file for file in TESTS}
    self.stack: list[set[tuple[str, int]]] = [set()]
    self.fixtures: dict[int, set[tuple[str, int]]] = {}
    self.tests: dict[str, dict[str, Any]] = {}

  def trace(self, frame: Any, event: str, arg: Any) -> Any:
    del arg
    file = self.paths.get(frame.f_code.co_filename)
    if file is None:
      return None
    if event in ('line', 'call'):
      self.stack[-1].add((file, frame.f_lineno))
    return self.trace

  @contextlib.contextmanager
  def recorded(self) -> Iterator[set[tuple[str, int]]]:
    self.stack.append(set())
    sys.settrace(self.trace)
    try:
      yield self.stack[-1]
    finally:
      lines = self.stack.pop()
      self.stack[-1] |= lines
      sys.settrace(self.trace if len(self.stack) > 1 else None)

  @pytest.hookimpl(wrapper=True)
  def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
    del request
    with self.recorded() as lines:
      result = yield
    self.fixtures.setdefault(id(fixturedef), set()).update(lines)
    return result

  @pytest.hookimpl(wrapper=True)
  def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Any:
    del nextitem
    # What a test keeps for the others would be found by its first user only.
    for value in vars(item.module).values():
      if str(getattr(value, '__module__', '')).startswith('tests.'):
        getattr(value, 'cache_clear', lambda: None)()
    began = time.perf_counter()
    with self.recorded() as lines:
      result = yield
    seconds = time.perf_counter() - began
    for fixturedefs in item._fixtureinfo.name2fixturedefs.values():
      for fixturedef in fixturedefs:
        lines = lines | self.fixtures.get(id(fixturedef), set())
    record = self.tests.setdefault(item.nodeid, {'passed': True})
    record |= {'seconds': round(seconds, 2), 'lines': sorted(lines)}
    return result

  def pytest_runtest_logreport(self, report: Any) -> None:
    if report.outcome != 'passed':  # A skipped test catches nothing either.
      self.tests.setdefault(report.nodeid, {})['passed'] = False


class _FirstFailure:
  """Pytest plugin: runs chosen tests in order, for a while, and notes who fails."""

  def __init__(self, seconds: dict[str, float], limit: float):
    self.seconds, self.limit = seconds, limit
    self.began = time.perf_counter()
    self.outcome: dict[str, Any] = {'caught_by': None, 'tests': 0}

  def pytest_collection_modifyitems(
    self, session: Any, config: Any, items: Any
  ) -> None:
    import jax

    del session, config
    # What a mutant compiles is of no use to the next one.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 1e9)
    order = {test: i for i, test in enumerate(self.seconds)}
    items[:] = [item for item in items if item.nodeid in order]
    items.sort(key=lambda item: order[item.nodeid])

  def pytest_runtest_setup(self, item: Any) -> None:
    # One that hangs is ended by the signal, and so is the child.
    signal.alarm(int(60 + 10 * self.seconds[item.nodeid]))
    if time.perf_counter() - self.began > self.limit:
      item.session.shouldstop = 'The time is up.'
      self.outcome['stopped'] = True

  def pytest_collectreport(self, report: Any) -> None:
    if report.failed:
      self.outcome['caught_by'] = 'collection'

  def pytest_runtest_logreport(self, report: Any) -> None:
    self.outcome['tests'] += report.when == 'call'
    if report.failed:
      self.outcome['caught_by'] = report.nodeid


def _in_child(work: Callable[[], Any], slot: int, folder: pathlib.Path) -> int:
  """Forks; the child writes what `work` returns to FOLDER/PID.json."""
  pid = os.fork()
  if pid:
    return pid
  code = 1
  try:
    with contextlib.suppress(AttributeError, OSError):
      cores = sorted(os.sched_getaffinity(0))
      os.sched_setaffinity(0, {cores[slot % len(cores)]})
    log = os.open(folder / f'{os.getpid()}.log', os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    result = work()
    (folder / f'{os.getpid()}.json').write_text(json.dumps(result))
    code = 0
  finally:
    os._exit(code)


def _run_all(
  jobs: list[Callable[[], Any]], workers: int, report: Callable[[int, Any, float], None]
) -> None:
  """Runs jobs in children, `workers` at a time; None for one that ended badly."""
  waiting = list(enumerate(jobs))[::-1]
  running: dict[int, tuple[int, int, float]] = {}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    while waiting or running:
      while waiting and len(running) < workers:
        number, job = waiting.pop()
        free = set(range(workers)) - {slot for _, slot, _ in running.values()}
        slot = min(free)
        running[_in_child(job, slot, folder)] = number, slot, time.perf_counter()
      pid, _ = os.waitpid(-1, 0)
      if pid not in running:
        continue
      number, _, began = running.pop(pid)
      path, log = folder / f'{pid}.json', folder / f'{pid}.log'
      result = json.loads(path.read_text()) if path.exists() else None
      if result is not None and result.get('broken'):
        raise RuntimeError(log.read_text()[-4000:])
      report(number, result, time.perf_counter() - began)
      for left in (path, log):
        left.unlink(missing_ok=True)


def _digest(test_file: str) -> str:
  """Changes when the code, the test file or what tests share does."""
  shared = ('conftest.py', 'helpers.py', 'reference.py', 'algorithms_test.py')
  files = [*ROOT.glob('fesem_jax/**/*.py'), ROOT / test_file]
  files += [ROOT / 'tests' / name for name in shared]
  whole = b''.join(path.read_bytes() for path in sorted(files))
  return hashlib.sha256(whole).hexdigest()[:16]


def _baseline(files: list[str], workers: int) -> dict[str, dict[str, Any]]:
  """Test -> whether it passes, its seconds and the lines it runs."""
  tests: dict[str, dict[str, Any]] = {}
  missing = []
  for file in files:
    path = KEPT / f'{_digest(file)}-{pathlib.Path(file).stem}.json'
    if path.exists():
      tests |= json.loads(path.read_text())
    else:
      missing.append((file, path))

  def job(file: str) -> Callable[[], Any]:
    def work() -> Any:
      plugin = _Lines()
      code = _pytest([file], plugin)
      return {'tests': plugin.tests, 'broken': code not in (0, 1)}

    return work

  def report(number: int, result: Any, seconds: float) -> None:
    file, path = missing[number]
    if result is None:
      raise RuntimeError(f'{file} could not be run.')
    KEPT.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result['tests']))
    tests.update(result['tests'])
    print(f'{file}: {len(result["tests"])} tests in {seconds:.0f} s', flush=True)

  _run_all([job(file) for file, _ in missing], workers, report)
  return tests


def _choose(mutant: Mutant, tests: dict[str, dict[str, Any]]) -> dict[str, float]:
  """Those of `tests` that run the mutant's lines, and their seconds, quickest first."""
  files = _files(TESTS[mutant.file])
  listed = {t: r for t, r in tests.items() if t.partition('::')[0] in files}
  # Default values and constants run on import, which belongs to no test.
  for first, last in (mutant.lines, mutant.scope, (1, 10**6)):

    def runs(r, a=first, b=last):
      return any(file == mutant.file and a <= line <= b for file, line in r['lines'])

    found = {t: r['seconds'] for t, r in listed.items() if r['passed'] and runs(r)}
    if found:
      return dict(sorted(found.items(), key=lambda item: item[1]))
  return {}


def _job(mutant: Mutant, tests: dict[str, float], limit: float) -> Callable[[], Any]:
  def work() -> Any:
    tree, _, node, field, new = _changed(mutant.file, mutant.number)
    setattr(node, field, new)
    sys.meta_path.insert(0, _Mutated(_module(mutant.file), mutant.file, tree))
    plugin = _FirstFailure(tests, limit)
    code = _pytest(sorted({test.partition('::')[0] for test in tests}), plugin)
    if code not in (0, 1, 2) and plugin.outcome['caught_by'] is None:
      plugin.outcome['broken'] = True
    return plugin.outcome

  return work


def _self_check(tests: dict[str, dict[str, Any]], workers: int) -> None:
  """Raises unless a plain fault is caught and a change of nothing survives."""
  file = 'fesem_jax/batching.py'
  plain = next(m for m in mutants_of(file) if m.function == 'batches_per_epoch')
  narrow = {t: s for t, s in _choose(plain, tests).items() if 'batching_test' in t}

  def nothing() -> Any:
    sys.meta_path.insert(0, _Mutated(_module(file), file, None))
    plugin = _FirstFailure(narrow, 600)
    _pytest(_files(('batching',)), plugin)
    return plugin.outcome

  outcomes: dict[int, Any] = {}

  def report(number, result, seconds):
    outcomes[number] = result

  _run_all([_job(plain, narrow, 600), nothing], workers, report)
  caught = [bool(outcomes[i] is None or outcomes[i]['caught_by']) for i in (0, 1)]
  if caught != [True, False] or outcomes[1]['tests'] != len(narrow):
    raise RuntimeError(f'A fault and a change of nothing gave {outcomes}.')


def _equivalents() -> dict[tuple[str, ...], str]:
  """Reason by `Mutant.key`."""
  if not EQUIVALENTS.exists():
    return {}
  fields = ('file', 'function', 'before', 'after')
  listed = json.loads(EQUIVALENTS.read_text())
  return {tuple(m[f] for f in fields): m['reason'] for m in listed}


def main() -> None:
  """Samples mutants, runs them and reports."""
  parser = argparse.ArgumentParser(description='Mutation testing; see the docstring.')
  parser.add_argument('--sample', type=int, default=300, help='mutants; 0 is all')
  parser.add_argument('--seed', type=int, default=0, help='decides which')
  parser.add_argument('--json', type=pathlib.Path, help='where the report goes')
  parser.add_argument('--workers', type=int, default=2, help='children at a time')
  parser.add_argument('--only', default='', help='start of the path of files to change')
  parser.add_argument('--tests', default='', help='of those listed, only these: a,b')
  parser.add_argument('--again', type=pathlib.Path, help='report of an earlier run')
  parser.add_argument('--seconds', type=float, default=240, help='tests of a mutant')
  args = parser.parse_args()
  began = time.perf_counter()
  sys.path.insert(0, str(ROOT))
  files = [file for file in TESTS if file.startswith(args.only)]
  if not files:
    parser.error(f'--only={args.only} names none of {", ".join(TESTS)}.')
  everything = [m for file in files for m in mutants_of(file)]
  count = min(args.sample or len(everything), len(everything))
  chosen = random.Random(args.seed).sample(everything, count)
  if args.again:
    fields = ('file', 'function', 'before', 'after')
    survived = json.loads(args.again.read_text())['survivors']
    wanted = {tuple(m[f] for f in fields) for m in survived}
    chosen = [m for m in everything if m.key() in wanted]
  chosen.sort(key=lambda m: (m.file, m.number))
  reasons = _equivalents()
  equivalent = [m for m in chosen if m.key() in reasons]
  to_run = [m for m in chosen if m.key() not in reasons]

  _import_the_rest()
  names = {name for file in files for name in TESTS[file]}
  if args.tests:
    names &= set(args.tests.split(','))
  listed = sorted(_files(names | {'batching'}))
  tests = _baseline(listed, args.workers)
  for test, record in tests.items():
    if not record['passed']:
      print(f'left out, as it fails or is skipped on the code as it is: {test}')
  _self_check(tests, args.workers)
  results: list[dict[str, Any]] = []

  def report(number: int, result: Any, seconds: float) -> None:
    mutant = to_run[number]
    outcome = result or {'caught_by': 'hung or crashed', 'tests': None}
    record = mutant._asdict() | outcome | {'seconds': round(seconds, 1)}
    results.append(record)
    verdict = 'caught' if outcome['caught_by'] else 'SURVIVED'
    print(
      f'{len(results)}/{len(to_run)} {verdict} {seconds:.0f} s {mutant.file}:'
      f'{mutant.lines[0]} {mutant.before} -> {mutant.after} [{outcome["caught_by"]}]',
      flush=True,
    )

  jobs = [_job(m, _choose(m, tests), args.seconds) for m in to_run]
  _run_all(jobs, args.workers, report)
  results.sort(key=lambda r: (r['file'], r['number']))
  survivors = [r for r in results if not r['caught_by']]
  caught = len(results) - len(survivors)
  share = caught / max(1, len(results))
  for r in survivors:
    print(f'{r["file"]}:{r["lines"][0]} in {r["function"]}')
    print(f'  {r["before"]}\n  {r["after"]}')
  print(
    f'{caught} of {len(results)} caught ({100 * share:.1f} %), {len(survivors)} '
    f'survived; {len(equivalent)} more are known to be equivalent; '
    f'{len(everything)} possible; {time.perf_counter() - began:.0f} s.'
  )
  if args.json:
    args.json.write_text(
      json.dumps(
        {
          'seed': args.seed,
          'possible': len(everything),
          'run': len(results),
          'caught': caught,
          'share': share,
          'survivors': survivors,
          'equivalent': [
            m._asdict() | {'reason': reasons[m.key()]} for m in equivalent
          ],
          'mutants': results,
        },
        indent=1,
      )
      + '\n'
    )


if __name__ == '__main__':
  main()
