"""Methods of earlier commands that stay in the table of a comparison."""

import pathlib
from collections.abc import Mapping
from typing import Any

from fesem_jax.analysis import costs_table
from fesem_jax.evaluation.paired import Summaries
from fesem_jax.results import metrics_file, saved_client_table
from fesem_jax.utils.errors import UserError

from . import methods

# What may differ between methods, whatever their options.
_OWN = ('algorithm', 'seed', 'own_code')


def kept(
  workdir: pathlib.Path, by_label: Mapping[str, list[dict[str, Any]]]
) -> tuple[Summaries, list[dict[str, Any]]]:
  """Finished methods of a workdir that a command does not name.

  `by_label` are the configurations of those that it names. A method is kept if it has
  a run of each of their seeds, with the same flags but for options of methods and what
  its label or tuning sets. Returns the summaries by label, and how the methods' values
  were chosen.
  """
  try:
    table = metrics_file.read_object(workdir / 'table.json') or {}
  except UserError:  # It is written anew.
    return {}, []
  rates = {row.get('method'): row for row in table.get('rates') or ()}
  configs = next(iter(by_label.values()))
  summaries: Summaries = {}
  for label in (row.get('method') for row in table.get('methods') or ()):
    if not isinstance(label, str) or label in by_label or label not in rates:
      continue
    folder = workdir / methods.folder_of(label)
    runs = [
      _run(folder / f'seed{c["seed"]}', c, label, rates[label].get('values') or {})
      for c in configs
    ]
    if all(run is not None for run in runs):
      summaries[label] = runs
  return summaries, [rates[label] for label in summaries]


def _run(
  folder: pathlib.Path, wanted: dict[str, Any], label: str, tuned: Mapping[str, Any]
) -> dict[str, Any] | None:
  """The summary of a finished run; None if there is none with the flags of `wanted`."""
  try:
    config, summary = (
      metrics_file.read_config(folder),
      metrics_file.read_summary(folder),
    )
    if config is None or summary is None:
      return None
    own = {*_OWN, *tuned, *methods.options(wanted['algorithm'])}
    own |= set(methods.options(config['algorithm']))
    shared = wanted.keys() & config.keys() - own
    if any(wanted[n] != config[n] and not methods.sets(label, n) for n in shared):
      return None
    history = metrics_file.read_metrics(folder / 'metrics.jsonl', summary['rounds'])
    return costs_table.with_curve(summary, history, saved_client_table.read(folder))
  except (UserError, KeyError):  # A damaged run is none of this table.
    return None
