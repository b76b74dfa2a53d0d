"""Flags that a run would not use: contradictions are refused, the others noted."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from absl import flags

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data.partitions.kinds import OF
from fesem_jax.data.source_checks import PLANTED
from fesem_jax.training.optimizers import AdamOptions
from fesem_jax.utils.errors import UserError, argument

from . import flags as experiment_flags
from . import methods, plugins
from .flag_tables import GROUPS

_DEFAULTS = {flag.name: flag.default for group in GROUPS.values() for flag in group}

# Method -> the rounds before it clusters clients, and what it does in those alone.
_BEFORE_CLUSTERS = {
  'flux': ('warmup_rounds', 'no round of flux trains clusters'),
  'fed_drift': ('check_every', 'fed_drift neither detects drift nor merges models'),
}

# Options after which many rounds something happens for the first time.
_PERIODS = ('recluster_every', 'loss_check_every', 'max_age')

_SHORT = 0.1  # Way to the mean of models in a run that makes no difference.

Config = dict[str, Any]


# Flag -> the flag, and its values, that it is for.
_NEEDS: dict[str, tuple[Any, ...]] = {
  'hidden': ('model', 'mlp'),
  'momentum': ('optimizer', 'momentum'),
  **dict.fromkeys(
    (f'adam_{name}' for name in AdamOptions._fields), ('optimizer', 'adam', 'adamw')
  ),
  'local_epochs': ('local_steps', 0),
  'beta': ('aggregation', 'trimmed_mean', 'krum'),
  'norm_bound': ('aggregation', 'norm_bound'),
  'hessian_delta': ('meta_gradient', 'hessian_free'),
  **{flag: ('partition', *names) for flag, names in OF.items()},
}
del _NEEDS['min_examples']  # Checked with the data: they may have clients.


def _fits(config: Config, flag: str) -> bool:
  """True if a configuration has a value that a flag is for."""
  other, *values = _NEEDS[flag]
  if flag == 'partition_groups' and config['dataset'] in PLANTED:
    return True
  given = (config[other] or '').split('+') if other == 'partition' else [config[other]]
  return bool(set(given) & set(values))


def _is_for(flag: str) -> str:
  """Purpose of a flag."""
  other, *values = _NEEDS[flag]
  *first, last = map(str, values)
  listed = f'--{other}={" or ".join([", ".join(first), last] if first else [last])}'
  if flag == 'partition_groups':
    listed += f', or --dataset={" or ".join(PLANTED)}'
  return f'it is for {listed}'


def check(config: Config, num_clients: int) -> None:
  """Refuses flags that contradict each other, which would be ignored."""
  if plugins.is_own(config['algorithm']):
    return
  given = config.get('device_profile')
  if given and config.get('client_devices', given) != given:
    raise UserError(
      f'{_named(config, "device_profile")} times other devices than '
      f'{_named(config, "client_devices")}, by which updates arrive; give one of them.'
    )
  if config.get('late_joins') and config['init_clients'] >= num_clients:
    raise UserError(
      f'{_named(config, "init_clients")} with `late_joins` leaves none of the '
      f'{num_clients} clients to join late; give fewer, or leave out `late_joins`.'
    )
  if config.get('aggregation') == 'krum' and config['krum_models'] > num_clients:
    raise UserError(
      f'{_named(config, "krum_models")} is more than the {num_clients} clients, of '
      'which it chooses; give fewer.'
    )


def check_effect(text: str, flag: str, configs: Iterable[Config]) -> None:
  """Raises `UserError` if no configuration has a value that a flag is for.

  `text` is the option that varies it.
  """
  full = [experiment_flags.filled(config) for config in configs]
  if flag in _NEEDS and not any(_fits(config, flag) for config in full):
    raise UserError(f'{text} has no effect: {_is_for(flag)}.')


def check_left_out(**reasons: str) -> None:
  """Raises `UserError` on flags that are not at their defaults.

  `reasons` says for each flag why this binary does not use it.
  """
  for name, reason in reasons.items():
    if flags.FLAGS[name].value != flags.FLAGS[name].default:
      raise UserError(f'--{name} does not apply: {reason}.')


def _is_given(flag: str) -> bool:
  """Tells if a flag is on the command line, perhaps with the value of its default."""
  return flag in flags.FLAGS and bool(flags.FLAGS[flag].present)


def notes_on_needs(config: Config) -> list[str]:
  """The `notes` on flags that are for other values of the flags in a configuration."""
  name, defaults = config.get('algorithm', ''), dict(_DEFAULTS)
  if plugins.is_own(name):  # Its options may have the names of flags of methods.
    defaults = {flag: defaults[flag] for flag in experiment_flags.common_names()}
  elif name:
    defaults |= methods.options(name)
  return [
    _without_effect(config, flag, _is_for(flag))
    for flag in _NEEDS
    if flag in config.keys() & defaults.keys()
    and (config[flag] != defaults[flag] or _is_given(flag))
    and not _fits(config, flag)
  ]


def without_unused(chosen: Config) -> Config:
  """Arguments of `data.load` without the options of other partitions.

  `notes_on_needs` names these, which `data.load` refuses. What contradicts the
  partition stays, to be refused.
  """
  kept = ['min_examples', 'drift_rounds', 'drift_start']
  if not chosen['partition']:
    kept.append('client_rows')
  return {
    name: value
    for name, value in chosen.items()
    if name not in OF or name in kept or _fits(chosen, name)
  }


def notes(config: Config, machine: dict[str, Any], num_clients: int) -> list[str]:
  """Sentences on flags that this run does not use.

  They may come from a preset or suit other methods and values of a comparison, so that
  they are no mistakes.
  """
  config = experiment_flags.filled(config)
  name, texts = config['algorithm'], notes_on_needs(config)
  if not config['eval_every']:
    reason = 'with `eval_every=0` only the last round is measured'
    if machine.get('report', 'last') != 'last':
      texts.append(_without_effect(machine, 'report', reason))
    if machine.get('target'):
      texts.append(f'rounds to {_named(machine, "target")} are unknown: {reason}.')
  late = [r for r in config['drift_rounds'] if int(r) > config['rounds']]
  if late:
    texts.append(
      f'{_named(config, "drift_rounds")} has changes after {_named(config, "rounds")}, '
      'which no round sees.'
    )
  return (
    texts if plugins.is_own(name) else texts + _notes_on_options(config, num_clients)
  )


def notes_of_run(
  config: Config, machine: dict[str, Any], train: FederatedData
) -> list[str]:
  """The `notes` of a run with a training split, and those on its sizes."""
  of_flags, sizes = notes(config, machine, train.num_clients), np.asarray(train.sizes())
  return of_flags + notes_on_weights(config, sizes)


def _notes_on_options(config: Config, num_clients: int) -> list[str]:
  """The `notes` on options of a method that is not the user's own."""
  sentences, name = [], config['algorithm']
  if name in ('fesem', 'fesem_ma', 'pacfl') and config['init_clients'] > num_clients:
    reason = f'all {num_clients} clients are in the first clustering'
    sentences.append(_without_effect(config, 'init_clients', reason))
  if name in _BEFORE_CLUSTERS:
    option, lack = _BEFORE_CLUSTERS[name]
    if config[option] >= config['rounds']:
      named = f'{_named(config, option)} and {_named(config, "rounds")}'
      sentences.append(f'with {named}, {lack}; give more rounds.')
  if name == 'fed_cluster':
    every = config['check_every']
    if (config['min_rounds'] // every + 1) * every >= config['rounds']:
      named = ', '.join(
        _named(config, flag) for flag in ('min_rounds', 'check_every', 'rounds')
      )
      sentences.append(
        f'with {named}, no round trains parts of a split: fed_cluster is FedAvg; give '
        'more rounds.'
      )
  if config.get('prox_weighting', 'uniform') != 'uniform' and not config['prox_lambda']:
    reason = f'there is no penalty, {_named(config, "prox_lambda")}'
    sentences.append(_without_effect(config, 'prox_weighting', reason))
  if name == 'l2gd':
    sentences += _notes_on_l2gd(config)
  for option in _PERIODS:
    if config.get(option, 0) > config['rounds']:
      reason = f'the run ends after {_named(config, "rounds")}'
      sentences.append(_without_effect(config, option, reason))
  return sentences


def notes_on_weights(config: Config, sizes: Iterable[int]) -> list[str]:
  """A sentence where the sizes of clients count in their selection and in the mean.

  `sizes` are the training examples of each client.
  """
  by_loss = (config.get('select') or '').startswith('power_of_choice')
  if not by_loss or len({int(n) for n in sizes if n}) < 2:
    return []
  if experiment_flags.filled(config).get('weighting') != 'by_examples':
    return []
  return [
    f'{_named(config, "select")} draws clients by their numbers of examples, and '
    f'{argument("weighting", "by_examples")} weighs them by these again; Cho et al. '
    f'average them alike: {argument("weighting", "uniform")}.'
  ]


def _notes_on_l2gd(config: Config) -> list[str]:
  """The `notes` on steps to the mean that are too short for the run."""
  p, rate = config['aggregation_probability'], config['learning_rate']
  # All steps theta of the rounds that aggregate, about a share p of them.
  sum_of_steps = config['rounds'] * rate * config['l2gd_lambda'] * (1 - p)
  if not 0 < sum_of_steps < _SHORT:
    return []
  return [
    f'with {_named(config, "l2gd_lambda")}, {_named(config, "learning_rate")} and '
    f'{_named(config, "rounds")}, all steps together move models about '
    f'{100 * sum_of_steps:.2g} % of the way to their mean: l2gd is close to non_fed; '
    f'give a larger {argument("l2gd_lambda")}, at most {p / (1 - p) / rate:.3g}.'
  ]


def _without_effect(config: Config, flag: str, reason: str) -> str:
  return f'{_named(config, flag)} has no effect: {reason}.'


def _named(config: Config, flag: str) -> str:
  value = config[flag]
  return argument(flag, ','.join(value) if isinstance(value, list) else value)
