"""Models whose outputs are probabilities, or whose numbers are of float16."""

import re
from typing import Any

import jax

from fesem_jax.core.types import Model, Params
from fesem_jax.tasks import REGRESSION
from fesem_jax.utils.notices import warn_once

# Operations that leave the values of an array as they are.
_SAME = ('reshape', 'squeeze', 'transpose', 'convert_element_type', 'copy', 'name')


def warn_of_probabilities(model: Model, params: Params, x: Any, named: str) -> None:
  """Says once that a model ends with a softmax or sigmoid, as its loss does.

  Training then learns slowly, if at all. `params` and `x` are shapes. A loss of the
  user's own may be of probabilities.
  """
  if model.loss is not model.task.loss or model.task.name == REGRESSION.name:
    return
  closed = jax.make_jaxpr(model.apply)(params, x)
  if last := _last(closed.jaxpr):
    warn_once(
      f'{named} ends with a {last}, and its loss has one too; models give logits: '
      f'leave the {last} out.'
    )


def computes_in_float16(model: Model, x: Any) -> bool:
  """True if a number of a model is float16, of examples with the shape of `x`."""
  params = jax.eval_shape(model.init, jax.random.key(0))
  return 'f16[' in re.sub('bf16', '', str(jax.make_jaxpr(model.apply)(params, x)))


def _last(jaxpr: Any) -> str:
  """'softmax' or 'sigmoid', if that is what the only output comes from; else ''."""
  equations = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
  eqn = equations.get(jaxpr.outvars[0]) if _is_variable(jaxpr.outvars[0]) else None
  while eqn is not None and eqn.primitive.name in _SAME:
    eqn = _maker(equations, eqn.invars[0])
  if eqn is None:
    return ''
  for inner in eqn.params.values():  # Of a function within a function.
    inner = getattr(inner, 'jaxpr', inner)
    if hasattr(inner, 'eqns') and len(eqn.outvars) == 1:
      return _last(inner)
  if eqn.primitive.name == 'logistic':
    return 'sigmoid'
  above = _maker(equations, eqn.invars[0]) if eqn.primitive.name == 'div' else None
  return 'softmax' if above is not None and above.primitive.name == 'exp' else ''


def _maker(equations: dict[Any, Any], var: Any) -> Any:
  return equations.get(var) if _is_variable(var) else None


def _is_variable(var: Any) -> bool:
  return not hasattr(var, 'val')  # A literal has a value, and no hash.
