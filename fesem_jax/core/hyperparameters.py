"""Hyperparameters as arguments of compiled programs, to avoid recompilation.

A method is built once, with hyperparameters that are numbers to Python and arguments
to the programs that are traced of it:

  numbers, decisions = hyperparameters.named({'learning_rate': 0.1})
  algorithm = make(**numbers)
  arguments = Arguments(decisions)
  traced = jax.jit(lambda x, values: arguments.bind(values, algorithm.step, x))
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

Values = Mapping[str, Any]  # Hyperparameters by name.

# The most numbers of each type that a program takes; others are its constants.
_PLACES: dict[type, int] = {float: 24, int: 8}

# Gives the value of a number where a function is traced; None gives its first value.
_READER = contextvars.ContextVar[Callable[[Any], Any] | None]('reader', default=None)


class Decisions:
  """Decisions of Python code by hyperparameters while a method was built.

  `read` are the names of those that programs read.
  """

  def __init__(self, first: Values):
    self.first, self.read = dict(first), set[str]()
    self._made = list[tuple[Callable[[Values], Any], Any]]()

  def add(self, decide: Callable[[Values], Any], outcome: Any) -> None:
    """Notes the outcome of a function of the hyperparameters."""
    self._made.append((decide, outcome))

  def hold_for(self, values: Values) -> bool:
    """True if the method is the same for other values but for its numbers."""
    same = values.keys() == self.first.keys() and all(
      values[name] == x and type(values[name]) is type(x)
      for name, x in self.first.items()
      if name not in self.read
    )
    return same and all(decide(values) == outcome for decide, outcome in self._made)


class _Number:
  """A number that is an expression of hyperparameters."""

  text: str  # the expression
  get: Callable[[Values], Any]  # values -> the number
  decisions: Decisions
  names: frozenset[str]  # of the hyperparameters in the expression

  def __jax_array__(self) -> Any:
    return variable(self)  # type: ignore[arg-type]

  __array_priority__ = 1000  # NumPy's arrays leave operators to it.
  __array_ufunc__ = None


class _Float(_Number, float):
  __hash__ = float.__hash__


class _Int(_Number, int):
  __hash__ = int.__hash__


def _number(value: Any, text: str, get: Any, decisions: Decisions, names: Any) -> Any:
  """A hyperparameter with a first value; other types of values stay as they are."""
  if type(value) not in _PLACES:
    return value
  kind: Any = _Float if type(value) is float else _Int
  number = kind(value)
  number.text, number.get, number.decisions = text, get, decisions
  number.names = frozenset(names)
  return number


def plain(x: Any) -> Any:
  """The first value of a hyperparameter; anything else as it is."""
  return x.__pos__() if isinstance(x, _Float | _Int) else x


def _value(x: Any, values: Values) -> Any:
  return x.get(values) if isinstance(x, _Number) else x


def _is_plain(x: Any) -> bool:
  return isinstance(x, bool | int | float)


def _arithmetic(name: str, kind: type) -> Callable[..., Any]:
  function = getattr(kind, name)

  def operation(self: Any, *others: Any) -> Any:
    if not all(map(_is_plain, others)):  # An array.
      return getattr(variable(self), name)(*others)
    value = function(plain(self), *map(plain, others))
    if value is NotImplemented:
      return value

    def get(values: Values) -> Any:
      return getattr(self.get(values), name)(*(_value(x, values) for x in others))

    names = self.names.union(*(x.names for x in others if isinstance(x, _Number)))
    shown = ' '.join(getattr(x, 'text', None) or repr(x) for x in others)
    return _number(value, f'({self.text} {name} {shown})', get, self.decisions, names)

  return operation


def _decision(name: str, kind: type) -> Callable[..., Any]:
  function = getattr(kind, name)

  def operation(self: Any, *others: Any) -> Any:
    if not all(map(_is_plain, others)):
      return getattr(variable(self), name)(*others) if others else NotImplemented

    def decide(values: Values) -> Any:
      return getattr(self.get(values), name)(*(_value(x, values) for x in others))

    outcome = function(plain(self), *map(plain, others))
    self.decisions.add(decide, outcome)
    return outcome

  return operation


_OPERATORS = (
  'add', 'radd', 'sub', 'rsub', 'mul', 'rmul', 'truediv', 'rtruediv', 'pow', 'rpow',
  'neg', 'abs',
)  # fmt: skip
# Their result is a constant of the program, so that it has to be that of all values.
_DECISIONS = (
  'eq', 'ne', 'lt', 'le', 'gt', 'ge', 'bool', 'int', 'float', 'round', 'trunc', 'floor',
  'ceil', 'mod', 'rmod', 'floordiv', 'rfloordiv', 'divmod', 'rdivmod',
)  # fmt: skip
for _kind, _base in ((_Float, float), (_Int, int)):
  for _name in map('__{}__'.format, _OPERATORS):
    setattr(_kind, _name, _arithmetic(_name, _base))
  for _name in map('__{}__'.format, _DECISIONS):
    if hasattr(_base, _name):
      setattr(_kind, _name, _decision(_name, _base))


def named(values: Values) -> tuple[dict[str, Any], Decisions]:
  """Hyperparameters with first values, to build a method with, and what it decides."""
  decisions, numbers = Decisions(values), {}
  for name, value in values.items():
    numbers[name] = _number(value, name, lambda v, n=name: v[n], decisions, [name])
  return numbers, decisions


def derived(function: Callable[[Values | None], float], text: str) -> float:
  """The number that a function gives, which reads hyperparameters by `variable`."""
  seen: list[Any] = []

  def note(x: Any) -> jax.Array:
    seen.append(x)
    return _constant(plain(x))

  with _reading(note):
    first = function(None)
  tuned = [x for x in seen if isinstance(x, _Number)]
  if not tuned:
    return first

  def get(values: Values) -> float:
    with _reading(lambda x: _constant(_value(x, values))):
      return function(values)

  names = frozenset().union(*(x.names for x in tuned))
  texts = ' '.join(x.text for x in tuned)
  return _number(first, f'{text}({texts})', get, tuned[0].decisions, names)


def variable(value: float) -> jax.Array | float:
  """A hyperparameter, a Python number, as an argument of the compiled program.

  The argument is [] of JAX's type for Python numbers. 0 is returned as it is, since
  programs without a penalty, for example, differ from those with one.
  """
  if value == 0:
    return plain(value)
  reader = _READER.get()
  return _constant(plain(value)) if reader is None else reader(value)


def constants() -> contextlib.AbstractContextManager[None]:
  """Gives `variable`s their first values in a block."""
  return _reading(lambda x: _constant(plain(x)))


@contextlib.contextmanager
def _reading(reader: Callable[[Any], Any]) -> Iterator[None]:
  token = _READER.set(reader)
  try:
    yield
  finally:
    _READER.reset(token)


def _constant(value: Any) -> jax.Array:
  with jax.ensure_compile_time_eval():
    return jnp.asarray(value)


class Arguments:
  """The numbers that programs of one method take as arguments, by their places."""

  def __init__(self, decisions: Decisions | None = None):
    self.decisions = decisions
    self._places: dict[type, dict[Any, Any]] = {kind: {} for kind in _PLACES}

  @property
  def first(self) -> Values:
    """The first values of the hyperparameters."""
    return {} if self.decisions is None else self.decisions.first

  def values(self, values: Values) -> tuple[list[float], list[int]]:
    """The numbers for some hyperparameters: 24 floats and 8 integers."""
    return tuple(
      [_value(x, values) for x in places.values()]
      + [kind(1)] * (_PLACES[kind] - len(places))
      for kind, places in self._places.items()
    )  # type: ignore[return-value]

  def bind(self, numbers: Any, function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function in which `variable`s are some of the `numbers`."""

    def read(x: Any) -> Any:
      kind = int if isinstance(x, int) else float
      places, key = self._places[kind], getattr(x, 'text', None) or x
      if not _is_plain(x):
        return _constant(x)
      if key not in places:
        if len(places) == _PLACES[kind]:
          return _constant(float(x) if kind is float else int(x))
        places[key] = x
      if isinstance(x, _Number):
        x.decisions.read |= x.names
      return numbers[list(_PLACES).index(kind)][list(places).index(key)]

    with _reading(read):
      return function(*args)


def optimizer(
  make: Callable[..., optax.GradientTransformation], *numbers: float, **named: float
) -> optax.GradientTransformation:
  """An Optax optimizer, as `optax.sgd`, with hyperparameters as variables."""

  def build() -> optax.GradientTransformation:
    by_name = {name: variable(number) for name, number in named.items()}
    return make(*map(variable, numbers), **by_name)

  def init(params):
    return build().init(params)

  def update(gradients, state, params=None):
    return build().update(gradients, state, params)

  return optax.GradientTransformation(init, update)
