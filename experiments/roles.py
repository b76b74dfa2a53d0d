"""The data of a run: splits, bad clients, and what is set aside."""

import json
from typing import Any

from fesem_jax import data
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.data import attacks
from fesem_jax.utils import progress_lines
from fesem_jax.utils.errors import check

from . import flags as experiment_flags
from .build import load_phases

# The data of runs, by what decides them in a configuration.
Unseen = tuple[FederatedData, FederatedData] | None
# Splits of each phase, clients that are set aside, and validation examples.
Roles = tuple[list[data.Phase], Unseen, FederatedData | None]
HeldData = dict[str, Roles]


def data_of(
  config: dict[str, Any],
  machine: dict[str, Any],
  splits: tuple[FederatedData, FederatedData] | None,
  held: HeldData,
) -> Roles:
  """The data of a configuration; see `run.plan`."""
  chosen = _choice_of_data(config)
  if splits:
    return _with_roles(config, [data.Phase(1, *splits)])
  if chosen not in held:
    progress = not machine.get('quiet')
    with progress_lines.shown(progress, f'loading {config["dataset"]}'):
      phases = load_phases(config, machine['data_dir'])
    held[chosen] = _with_roles(config, phases)
  return held[chosen]


def _choice_of_data(config: dict[str, Any]) -> str:
  """A text of all flags that decide the data of a run."""
  full = config
  also = 'seed', 'evaluate_on', 'unseen_fraction', 'attack', 'attack_fraction'
  names = [*experiment_flags.data_names(), *also, 'stop_after']
  knows_groups = config['algorithm'] == 'oracle'
  chosen = {name: full.get(name) for name in names} | {'groups': knows_groups}
  return json.dumps(chosen, sort_keys=True, default=str)


def _with_roles(config: dict[str, Any], phases: list[data.Phase]) -> Roles:
  """The data with bad clients and known groups, and what is set aside.

  That are clients that take no part, and validation examples of the others.
  """
  unseen, fraction, seed = None, config['unseen_fraction'], config['seed']
  validation, stop_after = None, config.get('stop_after', 0)
  drifts = len(phases) > 1
  check(not (fraction and drifts), 'unseen_fraction: excludes drift_rounds')
  check(not (stop_after and drifts), 'stop_after: excludes drift_rounds')
  if fraction:
    seen, unseen = data.hold_out_clients(*phases[0][1:], fraction, seed)
    phases = [data.Phase(1, *seen)]
  if stop_after:
    [(_, train, test)] = phases
    train, validation = data.hold_out(train, seed)
    phases = [data.Phase(1, train, test)]
  attack = config['attack'], config['attack_fraction']
  phases = [p._replace(train=attacks.apply(p.train, *attack, seed)) for p in phases]
  if config['algorithm'] == 'oracle':
    phases = data.phases_with_true_groups(phases)
  return phases, unseen, validation
