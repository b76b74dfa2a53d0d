"""Comparisons at several values of one flag (--sweep)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags

from fesem_jax import partitions
from fesem_jax.utils.display import text_of

from . import methods, tune


class Sweep(NamedTuple):
  """The runs of a sweep.

  Attributes:
    flag: the flag that varies.
    values: its values.
    labels: label of each method -> its label at each value.
    by_label: label at a value -> the configuration of each seed.
  """

  flag: str
  values: list[Any]
  labels: dict[str, list[str]]
  by_label: tune.ByLabel


def parse(text: str, configurations: Callable[[], tune.ByLabel]) -> Sweep:
  """The runs of FLAG:VALUE,VALUE or partition.FIELD:VALUE,VALUE; labels have the value.

  `configurations` returns those of the flags at the time of its call. A method without
  the flag, or that sets it in its row, runs once. Raises `UserError` on a flag or value
  that cannot vary.
  """
  name, values = tune.parse_search(text, 'sweep')
  flag_name, _, field = name.partition('.')
  flag, sweep = flags.FLAGS[flag_name], Sweep(name, values, {}, {})
  before = flag.value
  try:
    for value in values:
      flag.value = (
        str(partitions.replace(str(before), field, value)) if field else value
      )
      for method, configs in configurations().items():
        if name == 'attack_fraction' and not value:
          configs = [config | {'attack': ''} for config in configs]
        varies = flag_name in configs[0] and not methods.sets(method, flag_name)
        label = _label(method, name, value) if varies else method
        sweep.labels.setdefault(method, []).append(label)
        sweep.by_label[label] = configs
  finally:
    flag.value = before
  return sweep


def _label(method: str, flag: str, value: Any) -> str:
  """'fesem(4)' -> 'fesem(4;flag=value)'."""
  begin = f'{method[:-1]};' if method.endswith(')') else f'{method}('
  return f'{begin}{flag}={text_of(value)})'
