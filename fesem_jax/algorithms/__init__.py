"""Every method by its flag name."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from fesem_jax.algorithms import flat_options
from fesem_jax.algorithms.apfl import apfl
from fesem_jax.algorithms.centralized import centralized
from fesem_jax.algorithms.cfl_gp import cfl_gp
from fesem_jax.algorithms.clove import clove
from fesem_jax.algorithms.ditto import ditto
from fesem_jax.algorithms.fed_ala import fed_ala
from fesem_jax.algorithms.fed_amp import fed_amp
from fesem_jax.algorithms.fed_avg import fed_avg
from fesem_jax.algorithms.fed_babu import fed_babu
from fesem_jax.algorithms.fed_bn import fed_bn
from fesem_jax.algorithms.fed_buff import fed_buff
from fesem_jax.algorithms.fed_cluster import fed_cluster
from fesem_jax.algorithms.fed_dane import fed_dane
from fesem_jax.algorithms.fed_dist import fed_dist, fed_dws
from fesem_jax.algorithms.fed_drift import fed_drift
from fesem_jax.algorithms.fed_dyn import fed_dyn
from fesem_jax.algorithms.fed_em import fed_em
from fesem_jax.algorithms.fed_few import fed_few
from fesem_jax.algorithms.fed_group import fed_group
from fesem_jax.algorithms.fed_gwc import fed_gwc
from fesem_jax.algorithms.fed_nova import fed_nova
from fesem_jax.algorithms.fed_opt import fed_opt
from fesem_jax.algorithms.fed_per import fed_per
from fesem_jax.algorithms.fed_prox import fed_prox
from fesem_jax.algorithms.fed_rc import fed_rc
from fesem_jax.algorithms.fed_rep import fed_rep
from fesem_jax.algorithms.fed_sgd import fed_sgd
from fesem_jax.algorithms.fed_soft import fed_soft
from fesem_jax.algorithms.fesem import fesem
from fesem_jax.algorithms.flux import flux
from fesem_jax.algorithms.hypo_cluster import hypo_cluster
from fesem_jax.algorithms.l2gd import l2gd
from fesem_jax.algorithms.lg_fed_avg import lg_fed_avg
from fesem_jax.algorithms.moon import moon
from fesem_jax.algorithms.non_fed import non_fed
from fesem_jax.algorithms.oracle import oracle
from fesem_jax.algorithms.p_fed_me import p_fed_me
from fesem_jax.algorithms.pacfl import pacfl
from fesem_jax.algorithms.per_fed_avg import per_fed_avg
from fesem_jax.algorithms.robust import robust
from fesem_jax.algorithms.scaffold import scaffold
from fesem_jax.algorithms.stocfl import stocfl
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data.splits import with_weights
from fesem_jax.server import comparison
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.ranges import check_choice

METHODS: Mapping[str, Callable[..., Algorithm]] = {
  # In the order of the paper's Tables 2 and 3.
  'non_fed': non_fed,
  'fed_sgd': fed_sgd,
  'fed_avg': fed_avg,
  'fed_dist': fed_dist,
  'fed_dws': fed_dws,
  'robust': robust,
  'fed_cluster': fed_cluster,
  'hypo_cluster': hypo_cluster,
  'fed_dane': fed_dane,
  'fed_prox': fed_prox,
  'fesem': fesem,
  'fesem_ma': fesem,
  # Beyond the paper.
  'fed_opt': fed_opt,
  'scaffold': scaffold,
  'ditto': ditto,
  'fed_per': fed_per,
  'fed_rep': fed_rep,
  'fed_em': fed_em,
  'fed_rc': fed_rc,
  'fed_soft': fed_soft,
  'fed_few': fed_few,
  'fed_gwc': fed_gwc,
  'apfl': apfl,
  'p_fed_me': p_fed_me,
  'per_fed_avg': per_fed_avg,
  'fed_ala': fed_ala,
  'fed_amp': fed_amp,
  'l2gd': l2gd,
  'clove': clove,
  'fed_nova': fed_nova,
  'fed_dyn': fed_dyn,
  'fed_babu': fed_babu,
  'lg_fed_avg': lg_fed_avg,
  'fed_bn': fed_bn,
  'moon': moon,
  'fed_buff': fed_buff,
  'cfl_gp': cfl_gp,
  'pacfl': pacfl,
  'fed_group': fed_group,
  'stocfl': stocfl,
  'fed_drift': fed_drift,
  'flux': flux,
  # References, with the true groups and with the examples of all clients.
  'oracle': oracle,
  'centralized': centralized,
}


# Options that a name fixes.
_FIXED: Mapping[str, Mapping[str, Any]] = {
  'fesem_ma': {'cluster_on': comparison.MATCHED}
}


# Other names of methods, without their punctuation.
ALIASES = {
  'ifca': 'hypo_cluster', 'hypcluster': 'hypo_cluster', 'cfl': 'fed_cluster',
  'local': 'non_fed', 'localonly': 'non_fed', 'standalone': 'non_fed',
}  # fmt: skip


def named(text: str) -> str:
  """The name in `METHODS` of a method: 'FedAvg' is 'fed_avg', 'IFCA' 'hypo_cluster'."""
  plain = {name.replace('_', ''): name for name in METHODS} | ALIASES
  name = plain.get(re.sub('[^a-z0-9]', '', text.lower()), text)
  check_choice('algorithm', name, tuple(METHODS))
  return name


def options(name: str) -> dict[str, Any]:
  """The options of a method and of what wraps it, and their defaults."""
  name = named(name)
  defaults = flat_options.options(METHODS[name])
  if name in flat_options.RECLUSTERED:
    defaults |= flat_options.options(flat_options.reclustered)
  return {o: v for o, v in defaults.items() if o not in _FIXED.get(name, {})}


def build(name: str, local: LocalTraining, **chosen: Any) -> Algorithm:
  """A method with the chosen options.

  Args:
    name: one of `METHODS`.
    **chosen: its options. The option `weighting` may also be the weights of the
      clients, by name as {'Ann': 0.5, 'Bob': 0.5} or [M] in the order of the data.

  Raises:
    UserError: on an unknown method, or an option it does not have or allow.
  """
  name = named(name)
  prepare_data, defaults = None, options(name)
  for option in chosen.keys() - defaults.keys():
    check_choice(f'{name}: option', option, (*defaults, 'learning_rate'))
    raise UserError('learning_rate: is of the clients; give it to fj.local_optimizer')
  if not isinstance(weights := chosen.get('weighting', ''), str):
    prepare_data = functools.partial(with_weights, weights)
    chosen = {**chosen, 'weighting': 'by_weight'}
  values = {**defaults, **chosen, **_FIXED.get(name, {})}
  method_options = flat_options.options(METHODS[name])
  method = METHODS[name](local, **{option: values[option] for option in method_options})
  method = method._replace(prepare_data=prepare_data)
  every = values.get('recluster_every', 0)
  return flat_options.reclustered(method, local, values, recluster_every=every)
