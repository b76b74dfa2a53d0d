"""Partitions: how examples are dealt to clients, as frozen values.

  Rotated(groups=4, within=Dirichlet(alpha=0.1))
  partitions.parse('rotated(groups=4)+dirichlet(alpha=0.1)')

A new kind is a subclass of `Partition` with `deal`.
"""

import dataclasses
from typing import Any

from fesem_jax.data import expressions
from fesem_jax.data.partitions.grouped import (
  Corrupted,
  InClusters,
  LabelPermuted,
  LabelSwapped,
  Noisy,
  Rotated,
)
from fesem_jax.data.partitions.listed import Natural, Rows
from fesem_jax.data.partitions.partition import Context as Context
from fesem_jax.data.partitions.partition import (
  Dirichlet,
  DirichletLabels,
  Iid,
  Labels,
  Lognormal,
  Partition,
  PowerLaw,
  Shards,
  Unequal,
  name_of,
)
from fesem_jax.utils.errors import check

KINDS: dict[str, type[Partition]] = {
  name_of(kind): kind
  for kind in (
    Natural, Iid, Dirichlet, DirichletLabels, Unequal, Lognormal, Labels, PowerLaw,
    Shards, Rows, InClusters, Rotated, LabelPermuted, LabelSwapped, Corrupted, Noisy,
  )
}  # fmt: skip


def parse(text: str) -> Partition:
  """The partition of an expression, such as 'rotated(groups=4)+dirichlet(0.1)'.

  Groups and noise hold the other parts, in any order.
  """
  parts = expressions.build(text, KINDS, 'partition')
  check(parts, f'partition: {text!r:.40} is empty; expected e.g. dirichlet(0.1)')
  partition, *outer = sorted(parts, key=lambda part: part.layer)
  for part in outer:
    check(
      part.within, f'partition: {part!s:.30} and {partition!s:.30} cannot be joined'
    )
    partition = dataclasses.replace(part, within=partition)
  return partition


def replace(text: str, field: str, value: Any) -> Partition:
  """The partition of an expression with another value of one of its fields."""

  def replaced(part: Any) -> Any:
    check(part is not None, f'partition: {text} has no {field}')
    if field in (f.name for f in dataclasses.fields(part)):
      return dataclasses.replace(part, **{field: value})
    return dataclasses.replace(part, within=replaced(part.within))

  return replaced(parse(text))
