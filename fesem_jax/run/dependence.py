"""Which results of a traced function depend on what it is given."""

import re
from collections.abc import Sequence
from typing import Any

from jax.extend.core import Jaxpr, Literal

from fesem_jax.core.traced_functions import called_by

# Operations that draw random numbers.
DRAWS = re.compile('random_bits|threefry2x32|rng_bit_generator|rng_uniform')


def follow(
  jaxpr: Jaxpr, given: Sequence[bool], names: Sequence[str] = (), not_by: str = ''
) -> tuple[bool, list[bool]]:
  """Tells if numbers are drawn that depend on nothing given, and which results do.

  `given` says which arguments depend on it, as do values of these `names`, and none of
  the name `not_by`. Of loops and branches, all do if one does.
  """
  depends = dict(zip(jaxpr.invars, given, strict=True))

  def does(variable: Any) -> bool:
    return not isinstance(variable, Literal) and depends.get(variable, False)

  draws = False
  for equation in jaxpr.eqns:
    of, inner = list(map(does, equation.invars)), [f for f, _ in called_by(equation)]
    draws |= bool(DRAWS.match(equation.primitive.name)) and not any(of)
    name = equation.params['name'] if equation.primitive.name == 'name' else None
    is_given = name in names or (any(of) and name != not_by)
    results = [is_given] * len(equation.outvars)
    for each in inner:
      same = len(inner) == 1 and len(each.outvars) == len(results)
      same &= len(each.invars) == len(of) and 'jit' in equation.primitive.name
      own = of if same else [any(of)] * len(each.invars)
      alone, of_inner = follow(each, own, names, not_by)
      draws |= alone
      results = of_inner if same else [any(of_inner) or r for r in results]
    depends |= dict(zip(equation.outvars, results, strict=True))
  return draws, list(map(does, jaxpr.outvars))


def repeats_draws(jaxpr: Jaxpr) -> bool:
  """Tells if a function draws random numbers twice from a key of one value.

  Draws of other shapes have the same first numbers. Within a loop or branch, keys are
  not compared with those outside.
  """
  numbers: dict[Any, int] = {}  # Of values by how they are computed.
  drawn: list[int] = []

  def number(*made: Any) -> int:
    return numbers.setdefault(made, len(numbers))

  def visit(jaxpr: Jaxpr, given: Sequence[int]) -> list[int]:
    known = dict(zip(jaxpr.invars, given, strict=True))

    def of(variable: Any) -> int:
      if isinstance(variable, Literal):
        return number('literal', str(variable))
      return known.get(variable, number(id(variable)))

    for equation in jaxpr.eqns:
      name, operands = equation.primitive.name, tuple(map(of, equation.invars))
      inner = [function for function, _ in called_by(equation)]
      if name == 'random_bits':
        drawn.append(operands[0])
      if 'jit' in name and len(inner) == 1:
        results = visit(inner[0], operands)
      else:
        for each in inner:  # JAX keeps one trace for calls with several keys.
          within = id(equation), id(each), operands
          visit(each, [number(within, i) for i in range(len(each.invars))])
        params = '' if inner else str(equation.params)
        made = (name, params, operands, id(equation) if inner else 0)
        results = [number(*made, i) for i in range(len(equation.outvars))]
      known |= dict(zip(equation.outvars, results, strict=True))
    return list(map(of, jaxpr.outvars))

  visit(jaxpr, [number(id(variable)) for variable in jaxpr.invars])
  return len(set(drawn)) < len(drawn)
