"""Comparisons at several values of one flag (--sweep)."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags

from fesem_jax import tasks
from fesem_jax.analysis import tables
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
  """The runs of FLAG:VALUE,VALUE; labels have the value.

  `configurations` returns those of the flags at the time of its call. A method without
  the flag, or that sets it in its row, runs once. Raises `UserError` on a flag or value
  that cannot vary.
  """
  name, values = tune.parse_search(text, 'sweep')
  flag, sweep = flags.FLAGS[name], Sweep(name, values, {}, {})
  before = flag.value
  try:
    for value in values:
      flag.value = value
      for method, configs in configurations().items():
        if name == 'attack_fraction' and not value:
          configs = [config | {'attack': ''} for config in configs]
        varies = name in configs[0] and not methods.sets(method, name)
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


def draw(sweep: Sweep, rows: tables.Rows, workdir: pathlib.Path) -> None:
  """Draws the deployed metric and the ARI of each method by the flag's value."""
  from fesem_jax import plots  # Raises UserError without matplotlib.

  task, by_label = tasks.of(rows[0]), {row['method']: row for row in rows}
  honest = tables.has_honest(rows)
  key = f'{"honest_" * honest}deployed_{task.primary_column}'
  title = f'Deployed{", honest clients" * honest}', task.primary.title

  def curves(point: Callable[[dict[str, Any]], Any]) -> dict[str, list[Any]]:
    return {
      method: [point(by_label[label]) for label in labels]
      for method, labels in sweep.labels.items()
    }

  panels = {title: curves(lambda row: row[key])}
  if any(row['ari'] is not None for row in rows):
    panels['Agreement with the true clusters', 'ARI'] = curves(
      lambda row: None if row['ari'] is None else (row['ari'], None)
    )
  numbers = all(type(value) in (int, float) for value in sweep.values)
  everyone = sweep.flag == 'clients_per_round' and 0 in sweep.values
  texts = ['all' if everyone and not v else text_of(v) for v in sweep.values]
  places = sweep.values if numbers and not everyone else None
  figure = plots.by_value(panels, sweep.flag, texts, places)
  plots.save(figure, workdir / 'plots' / 'sweep')
