"""Methods of earlier commands that stay in the table of a comparison."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fesem_jax.analysis import clients_table
from fesem_jax.evaluation.paired import Summaries
from fesem_jax.run.results import metrics_file, saved_client_table
from fesem_jax.utils.errors import UserError

from . import flags as experiment_flags
from . import methods

# What files a run has read, beside flags: digests in its config.json.
_OF_FILES = 'data_digest', 'init_digest', 'select_digest'
# Flags beside those of data that decide which.
_CHOOSE_FILES = (
  'seed', 'evaluate_on', 'unseen_fraction', 'attack', 'attack_fraction', 'stop_after',
  'init_from', 'select',
)  # fmt: skip


def kept(
  workdir: pathlib.Path, by_label: Mapping[str, list[dict[str, Any]]]
) -> tuple[Summaries, list[dict[str, Any]]]:
  """Finished methods of a workdir that a command does not name.

  `by_label` are the configurations of those that it names. A method is kept if it has
  a run of each of their seeds, with the same flags but for options of methods and what
  its label or tuning sets. Returns the summaries by label, and how the methods' values
  were chosen.
  """
  table = metrics_file.read_object(workdir / 'table.json') or {}
  rates = {row['method']: row for row in table.get('rates', ())}
  seeds = [c['seed'] for c in next(iter(by_label.values()))]
  # Methods may set flags themselves, and a sweep sets one.
  configs = [c for c, *_ in by_label.values()]
  configs.append(experiment_flags.common())
  configs = list(map(experiment_flags.with_whole_schedule, configs))
  summaries: Summaries = {}
  for label in rates:
    if label in by_label:
      continue
    folder = workdir / methods.folder_of(label)
    tuned = rates[label]['values'] if rates[label]['runs'] else {}
    runs = [_run(folder / f'seed{seed}', configs, label, tuned) for seed in seeds]
    if all(run is not None for run in runs):
      summaries[label] = runs
  return summaries, [rates[label] for label in summaries]


def of_other_files(
  kept: Mapping[str, Any],
  by_label: Mapping[str, list[dict[str, Any]]],
  workdir: pathlib.Path,
) -> list[str]:
  """Labels of kept methods whose files, by the same names, had other contents.

  They are compared with the runs of `by_label` that there are by now.
  """
  names = [*experiment_flags.data_names(), *_CHOOSE_FILES]

  def read(label: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = workdir / methods.folder_of(label) / f'seed{seed}'
    config = metrics_file.read_config(folder) or {}
    chosen = {name: config.get(name) for name in names}
    return chosen, {name: config.get(name) for name in _OF_FILES}

  seeds = [c['seed'] for c in next(iter(by_label.values()))]
  ran = [read(label, seed) for label in by_label for seed in seeds]
  return [
    label
    for label in kept
    for seed in seeds
    for chosen, digests in [read(label, seed)]
    if any(chosen == own and digests != others for own, others in ran)
  ]


def _run(
  folder: pathlib.Path,
  configs: Sequence[dict[str, Any]],
  label: str,
  tuned: Mapping[str, Any],
) -> dict[str, Any] | None:
  """The summary of a finished run; None without one of flags among `configs`."""
  try:
    config, summary = (
      metrics_file.read_config(folder),
      metrics_file.read_summary(folder),
    )
    if config is None or summary is None:
      return None
    # It may have gone on after it began; what ended earlier may have been asked for.
    done = summary['rounds']
    finished = summary.get('ended', 'finished') == 'finished'
    config['rounds'] = done if finished else max(done, config['rounds'])
    for name in {*experiment_flags.common_names()} - {'seed', *tuned}:
      known = any(config[name] == each[name] for each in configs)
      if not (known or methods.sets(label, name)):
        return None
    return clients_table.with_clients(summary, saved_client_table.read(folder))
  except (UserError, KeyError):  # A damaged run is none of this table.
    return None
