"""Methods of earlier commands that stay in the table of a comparison."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fesem_jax.analysis import costs_table
from fesem_jax.evaluation.paired import Summaries
from fesem_jax.run.results import file_digests, metrics_file
from fesem_jax.utils.display import text_of
from fesem_jax.utils.errors import UserError

from . import flags as experiment_flags
from . import methods, plugins

# What files a run has read, beside flags: digests in its config.json.
_OF_FILES = 'data_digest', 'init_digest', 'select_digest', 'client_work_digest'
# Flags beside those of data that decide which.
_CHOOSE_FILES = (
  'seed', 'evaluate_on', 'unseen_fraction', 'corrupt', 'corrupt_fraction', 'stop_after',
  'init_from', 'select', 'client_work',
)  # fmt: skip


def kept(
  workdir: pathlib.Path, by_label: Mapping[str, list[dict[str, Any]]]
) -> tuple[Summaries, list[dict[str, Any]]]:
  """Finished methods of a workdir that a command does not name.

  `by_label` are the configurations of those that it names. A method is kept if it has
  a run of each of their seeds, with the same flags but for options of methods, which a
  note names, and what its label or tuning sets. Returns the summaries by label, and how
  the methods' values were chosen.
  """
  try:
    table = metrics_file.read_object(workdir / 'table.json') or {}
  except UserError:  # It is written anew.
    return {}, []
  rates = {row.get('method'): row for row in table.get('rates') or ()}
  seeds = [c['seed'] for c in next(iter(by_label.values()))]
  # Methods may set flags themselves, and a sweep sets one.
  configs = [_whole(c) for c, *_ in by_label.values()]
  configs.append(_whole(experiment_flags.common()))
  summaries: Summaries = {}
  for label in (row.get('method') for row in table.get('methods') or ()):
    if not isinstance(label, str) or label in by_label or label not in rates:
      continue
    folder = workdir / methods.folder_of(label)
    tuned = (rates[label].get('values') or {}) if rates[label].get('runs') else {}
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
    full = config
    chosen = {name: full.get(name) for name in names}
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


def _whole(config: dict[str, Any]) -> dict[str, Any]:
  return experiment_flags.with_whole_schedules(config)


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
    mine = config
    # It may have gone on after it began; what ended earlier may have been asked for.
    done = summary['rounds']
    finished = summary.get('ended', 'finished') == 'finished'
    mine['rounds'] = done if finished else max(done, mine['rounds'])
    for name in {*experiment_flags.common_names()} - {'seed', *tuned}:
      known = any(mine[name] == each[name] for each in configs)
      if not (known or methods.sets(label, name)):
        return None
    other = _other_options(config, configs, label, tuned)
    note = f'of an earlier command, as are its seconds{", with " * bool(other)}{other}.'
    summary['notes'] = [*summary.get('notes', []), note]
    of_files = {name: config.get(name, '') for name in ('model', 'dataset')}
    now = of_files | plugins.identity(of_files, folder, lambda _: None)
    if earlier := plugins.changed(now, folder):
      summary['earlier_code'] = earlier
    history = metrics_file.read_metrics(folder / 'metrics.jsonl', done)
    file_digests.check(folder, summary, history)
    return costs_table.with_curve(
      summary, history, file_digests.read_clients(folder, summary)
    )
  except (UserError, KeyError):  # A damaged run is none of this table.
    return None


def _other_options(
  config: dict[str, Any],
  configs: Sequence[dict[str, Any]],
  label: str,
  tuned: Mapping[str, Any],
) -> str:
  """Options of a kept method that neither its label nor the command's flags say."""
  name, chosen = config['algorithm'], experiment_flags.chosen_options()
  return ', '.join(
    f'{option}={text_of(config[option])}'
    for option, default in methods.options(name).items()
    if option in config
    and config[option] != chosen.get(option, default)
    and not any(config[option] == c[option] for c in configs if option in c)
    and option not in ('num_clusters', *tuned)
    and not methods.sets(label, option)
  )
