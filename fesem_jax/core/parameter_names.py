"""Parameters of a model chosen by names or patterns of their paths, at any depth."""

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from fesem_jax.core import tree
from fesem_jax.core.types import Params
from fesem_jax.utils.errors import UserError, check


def is_named(path: Sequence[str], names: Collection[str]) -> bool:
  """True if names or `fnmatch` patterns of paths choose a parameter or its layer."""
  prefixes = ['/'.join(path[:i]) for i in range(1, len(path) + 1)]
  return any(_fits(part, name) for name in names for part in prefixes)


def _fits(path: str, name: str) -> bool:
  if path == name or fnmatch.fnmatchcase(path, name):
    return True
  return name.startswith('**/') and _fits(path, name[3:])


def split(params: Params, names: Collection[str]) -> tuple[Params, Params]:
  """The parameters that `names` do not choose, and those that they do, else None."""
  return (
    _masked(params, lambda path: not is_named(path, names)),
    _masked(params, lambda path: is_named(path, names)),
  )


def _masked(params, keep, path=()):
  if not isinstance(params, Mapping):
    return params if keep(path) else None
  parts = {n: _masked(x, keep, (*path, n)) for n, x in params.items()}
  if all(x is params[n] for n, x in parts.items()):
    return params
  whole = all(x is None for x in parts.values())
  return None if whole and path else parts


def replaced(params: Params, others: Mapping[str, Any] | None) -> Params:
  """The same tree with `others`, path as norm/mean -> array; None stays."""
  if not others or params is None:
    return params
  flat = flatten_dict(params, sep='/')
  new = {p: x if x is None else others.get(p, x) for p, x in flat.items()}
  return unflatten_dict(new, sep='/')


def zeroed(params: Params, names: Collection[str]) -> Params:
  """The same tree with zeros in the parameters that `names` choose."""
  others, chosen = split(params, names)
  return tree.merge(others, tree.zeros_like(chosen))


def without_none(params: Params) -> Params:
  """The same tree without the layers and parameters that are None."""
  if not isinstance(params, Mapping):
    return params
  return {n: without_none(x) for n, x in params.items() if x is not None}


def chosen(params: Params, names: Collection[str], flag: str) -> tuple[str, ...]:
  """Paths that names or patterns choose; `UserError` if one chooses nothing."""
  check(not isinstance(names, str), f'{flag}: must be a list of names; got {names!r}')
  paths = list(flatten_dict(params))
  for name in names:
    if not any(is_named(path, [name]) for path in paths):
      choices = ['/'.join(path) for path in paths] if set('/*') & set(name) else params
      shown = ', '.join([*choices][:12])
      raise UserError(f'{flag}: no layer {name}; expected one of {shown}')
  return tuple('/'.join(path) for path in paths if is_named(path, names))
