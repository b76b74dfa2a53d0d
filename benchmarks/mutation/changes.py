"""Changes of one operator, comparison, constant or argument of a source file."""

import ast
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

# Constants that decide about speed only, or about precision on accelerators.
_SPEED = {
  '_NUMBERS_AT_ONCE', 'READ_AT_ONCE', '_ROWS_AT_ONCE', 'GRAM_CLIENTS', '_HIGHEST',
  'GRAM_CLIENTS_PER_CLUSTER', '_SIDE_BY_SIDE', '_LARGE', '_FEW', '_FEW_CLUSTERS',
  '_GROUP', '_LANES', '_TERMS', '_UNROLLED', '_BLOCK', 'EVALUATION_BATCH', 'SMALL',
  '_ROWS_PER_KERNEL', '_CACHED', '_ALONE_MORE', '_TWO_MORE', '_OWN',
  'MAX_INITIAL_CLIENTS',
}  # fmt: skip
_KEPT_KEYWORDS = {'precision', 'mesh', 'strict'}
# Calls whose arguments may change places.
_SYMMETRIC = {'maximum', 'minimum', 'add', 'max', 'min', 'lcm', 'gcd'}

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
_PAIRS = (
  ('min', 'max'), ('argmin', 'argmax'), ('any', 'all'), ('minimum', 'maximum'),
  ('add', 'subtract'), ('sum', 'mean'),
)  # fmt: skip
_NAMES = dict(_PAIRS) | {b: a for a, b in _PAIRS}


class Mutant(NamedTuple):
  """One change of one file.

  Attributes:
    file: path below the root.
    function: dotted name of what encloses the change; '' for the module.
    number: index of the change within its file.
    lines: first and last line of the changed statement, or of a block's head.
    scope: first and last line of the enclosing function, or of the file.
    before: source around the change.
    after: the same source with the change.
  """

  file: str
  function: str
  number: int
  lines: tuple[int, int]
  scope: tuple[int, int]
  before: str
  after: str


class _Edit(NamedTuple):
  """A new value of a field of a syntax tree's node, and the nodes around it."""

  parents: tuple[ast.AST, ...]  # Outermost first; the last is where the change is.
  node: ast.AST
  field: str
  value: Any


def _places(node: ast.AST, parents: tuple[ast.AST, ...] = ()) -> Iterator[Any]:
  """Tuples of nested nodes to change, without type hints, imports and messages."""
  if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
    return
  if isinstance(node, ast.Assign) and _SPEED & {ast.unparse(t) for t in node.targets}:
    return
  yield (*parents, node)
  for field, value in ast.iter_fields(node):
    if field in ('annotation', 'returns', 'decorator_list', 'bases'):
      continue
    for child in value if isinstance(value, list) else [value]:
      if isinstance(child, ast.AST):
        yield from _places(child, (*parents, node))


def _values(parents: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, str, Any]]:
  """The node, field and new value of each change of the last of `parents`."""
  node, parent = parents[-1], parents[max(0, len(parents) - 2)]
  if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
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
  if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(
    node.test, ast.Compare
  ):
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
    yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[tuple[ast.AST, str, Any]]:
  """Exchanges of neighboring arguments, and calls without one of their keywords."""
  name = ast.unparse(node.func).rpartition('.')[2]
  # In longer calls, nearly every exchange is an error of types.
  few = len(node.args) <= 3 and name not in _SYMMETRIC
  for i, (a, b) in enumerate(zip(node.args, node.args[1:], strict=False)):
    starred = isinstance(a, ast.Starred) or isinstance(b, ast.Starred)
    if few and not starred and ast.dump(a) != ast.dump(b):
      yield node, 'args', [*node.args[:i], b, a, *node.args[i + 2 :]]
  for keyword in node.keywords:
    if keyword.arg and keyword.arg not in _KEPT_KEYWORDS:
      yield node, 'keywords', [k for k in node.keywords if k is not keyword]


def _edits(tree: ast.Module) -> list[_Edit]:
  return [
    _Edit(parents, *values) for parents in _places(tree) for values in _values(parents)
  ]


def _text(node: ast.AST) -> str:
  return ' '.join(ast.unparse(node).split())


def _shown(edit: _Edit) -> ast.AST:
  """Enough of the expression around a change to recognize it."""
  context = edit.node
  for parent in reversed(edit.parents[:-1]):
    if isinstance(context, ast.expr) and len(_text(context)) >= 30:
      break
    if isinstance(parent, ast.mod) or hasattr(parent, 'body'):
      break
    context = parent
    if isinstance(context, ast.stmt):
      break
  return context


def _source(context: ast.AST) -> str:
  return _text(context.test if isinstance(context, ast.If | ast.While) else context)


def mutants_of(root: pathlib.Path, file: str) -> list[Mutant]:
  """Every change of a file."""
  tree = ast.parse((root / file).read_text())
  out = []
  for number, edit in enumerate(_edits(tree)):
    functions = [p for p in edit.parents if isinstance(p, ast.FunctionDef)]
    named = [p for p in edit.parents if isinstance(p, ast.FunctionDef | ast.ClassDef)]
    statement = [p for p in edit.parents if isinstance(p, ast.stmt)][-1]
    body = getattr(statement, 'body', None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    context = _shown(edit)
    before, old = _source(context), getattr(edit.node, edit.field)
    setattr(edit.node, edit.field, edit.value)
    after = _source(context)
    setattr(edit.node, edit.field, old)
    inner = functions[-1] if functions else None
    scope = (inner.lineno, inner.end_lineno or 1) if inner else (1, 10**6)
    function = '.'.join(p.name for p in named)
    lines = statement.lineno, max(last, statement.lineno)
    out.append(Mutant(file, function, number, lines, scope, before, after))
  return out


def changed(root: pathlib.Path, mutant: Mutant) -> ast.Module:
  """The syntax tree of a mutant's file."""
  tree = ast.parse((root / mutant.file).read_text())
  edit = _edits(tree)[mutant.number]
  setattr(edit.node, edit.field, edit.value)
  return ast.fix_missing_locations(tree)
