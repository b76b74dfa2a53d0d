"""Functions as an accelerator would compute them, on the CPU, by rounding factors.

A CPU multiplies in float32 whatever precision a product asks for. Here a function's
program is traced, the form for accelerators is taken where there are two, and each
product gets the factors that a TPU multiplies: bfloat16 numbers of 8 bits, of which the
precisions take one for each factor ('default'), two ('high') or all three, which are
float32 ('highest'). Sums of products stay float32, as there. Nothing else changes, and
the backward pass, which is part of the program, rounds its own factors.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.lax import Precision

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.traced_functions import called_by

_PRODUCTS = ('dot_general', 'conv_general_dilated')
# Calls, by the parameter that is the program called.
_CALLS = {
  'jit': 'jaxpr',
  'custom_jvp_call': 'call_jaxpr',
  'custom_vjp_call': 'call_jaxpr',
  'custom_vmap_call': 'call',
}
# What runs programs of its own, by the parameters that hold them.
_RUNS = {
  'while': ('cond_jaxpr', 'body_jaxpr'),
  'cond': ('branches',),
  'scan': ('jaxpr',),
}


def algorithm(exact: Algorithm) -> Algorithm:
  """A method whose start and rounds are computed so; measuring is not."""
  return exact._replace(init=function(exact.init), step=function(exact.step))


def function(fn: Callable[..., Any]) -> Callable[..., Any]:
  """`fn` of arrays, with the products of an accelerator.

  Raises:
    ValueError: if it runs programs in a way that is not known here, e.g. on several
      devices.
  """

  def run(*args: Any) -> Any:
    program, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    out = _evaluate(program, *jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shape), out)

  return run


def products(program: Jaxpr) -> list[Any]:
  """Precisions that the products of a program ask for, and those that it runs."""
  precisions = []
  for eqn in program.eqns:
    if eqn.primitive.name in _PRODUCTS:
      precisions.append(eqn.params['precision'])
    for inside, _ in called_by(eqn):
      precisions += products(inside)
  return precisions


def product(multiply: Callable[..., Any], precision: Precision, a: Any, b: Any) -> Any:
  """A product of float32 factors; `multiply` is the exact one."""
  if precision == Precision.HIGHEST:
    return multiply(a, b)
  first, second = _rounded(a), _rounded(b)
  if precision == Precision.DEFAULT:
    return multiply(first, second)
  rest, other = _rounded(a - first), _rounded(b - second)
  # Three passes: the product of both rests is left out.
  return multiply(first, second) + (multiply(first, other) + multiply(rest, second))


def _rounded(x: jax.Array) -> jax.Array:
  """To the bits of bfloat16, which the compiler keeps, unlike `astype` to and fro."""
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _evaluate(program: ClosedJaxpr, *args: Any) -> list[Any]:
  known: dict[Any, Any] = {}

  def read(var: Any) -> Any:
    return var.val if isinstance(var, Literal) else known[var]

  def write(variables: Any, values: Any) -> None:
    known.update(zip(variables, values, strict=True))

  write(program.jaxpr.constvars, program.consts)
  write(program.jaxpr.invars, args)
  for eqn in program.jaxpr.eqns:
    write(eqn.outvars, _apply(eqn, [read(var) for var in eqn.invars]))
  return [read(var) for var in program.jaxpr.outvars]


def _apply(eqn: Any, inputs: list[Any]) -> list[Any]:
  """The results of one operation."""
  name, params = eqn.primitive.name, eqn.params
  if name in _PRODUCTS:
    return [_product(eqn, *inputs)]
  if name in _CALLS:
    return _evaluate(_closed(params[_CALLS[name]]), *inputs)
  if name == 'cond' and params.get('branches_platforms') is not None:
    # Of the forms for several platforms, TPUs' own or the one for all that have none.
    names = params['branches_platforms']
    fit = [i for i, name in enumerate(names) if name is None or 'tpu' in name]
    return _evaluate(params['branches'][fit[0]], *inputs[1:])
  own = {key: jax.tree.map(_changed, params[key]) for key in _RUNS.get(name, ())}
  if not own and any(products(f) for f, _ in called_by(eqn)):
    raise ValueError(f'{name} runs products of its own.')
  out = eqn.primitive.bind(*inputs, **params | own)
  return out if eqn.primitive.multiple_results else [out]


def _changed(program: ClosedJaxpr) -> ClosedJaxpr:
  return jax.make_jaxpr(lambda *args: _evaluate(program, *args))(*program.in_avals)


def _closed(program: ClosedJaxpr | Jaxpr) -> ClosedJaxpr:
  return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, ())


def _product(eqn: Any, a: Any, b: Any) -> Any:
  # What asks for none is made float32's by `setup_devices`.
  chosen = eqn.params['precision'] or (Precision.HIGHEST,) * 2
  exact = eqn.params | {'precision': (Precision.HIGHEST,) * 2}

  def multiply(a: Any, b: Any) -> Any:
    return eqn.primitive.bind(a, b, **exact)

  if a.dtype != jnp.float32 or b.dtype != jnp.float32:
    return multiply(a, b)
  return product(multiply, chosen[0], a, b)
