"""Options of methods: every keyword-only argument that some method has."""

import functools
from typing import Any

from fesem_jax import algorithms
from fesem_jax.core import device_profiles
from fesem_jax.training.trained import WEIGHTINGS

from .. import methods
from .entry import Flag, documented, kind_of

_CHOICES = {
  'client_devices': tuple(device_profiles.PROFILES),
  'client_state': ('stacked', 'offloaded', 'streamed'),
  'init_models': ('common', 'random', 'by_loss'),
  'linkage': ('complete', 'average', 'single'),
  'meta_gradient': ('first_order', 'hessian_free'),
  'prox_weighting': ('uniform', 'paper'),
  'proximity': ('smallest_angle', 'sum_of_angles', 'entries'),
  'weighting': WEIGHTINGS,
}

# What several methods have, and options of wrappers.
_IN_COMMON = {
  'aggregation': "A center's value from the models of its clients: mean, median, "
  'trimmed_mean(SHARE), norm_bound(LENGTH) or krum(MODELS); all but the mean withstand '
  'bad clients and weigh clients alike.',
  'client_state': 'Where what clients keep between rounds is stored: stacked, on the '
  'devices; offloaded, in the memory of their host, from which each chunk of clients '
  'is copied; streamed (FeSEM), only the centers are stored.',
  'cluster_on': 'Parameters that the E-step compares: all, or names and patterns of '
  'layers and parameters, separated by commas.',
  'init_epochs': 'Local epochs before the first clustering.',
  'num_clusters': 'K, the number of centers.',
  'prox_mu': 'mu of the proximal term mu / 2 |w - c|^2.',
  'recluster_every': 'Interval of rounds in which clients train from the mean of the '
  'centers and are clustered again; it doubles whenever this confirms the clusters. '
  '0: never.',
  'reseed_empty': 'Move a center without clients to the client farthest from its own '
  'center.',
  'server_optimizer': 'Server update from the mean change of the clients (FedOpt): '
  'mean, or a step of momentum (FedAvgM), adagrad, adam or yogi, with numbers in '
  'brackets such as adam(beta1=0.9, beta2=0.99, tau=0.001).',
  'weighting': 'Weights of clients in a mean: uniform; by_examples; or by_weight, '
  'those of the column `weight` of the data.',
}


def text_for(method: str, option: str) -> str:
  """The description of an option of one method, from its docstring."""
  own = documented(algorithms.METHODS[method]).get(option, '')
  if option == 'server_learning_rate':
    return own or 'Learning rate of --server_optimizer.'
  return _IN_COMMON.get(option) or own


def _option(name: str, of_methods: dict[str, dict[str, Any]]) -> Flag:
  """The flag of an option; without a value, each method has its own default."""
  having = {method: own[name] for method, own in of_methods.items() if name in own}
  methods_of_text: dict[str, list[str]] = {}
  for method in having:
    methods_of_text.setdefault(text_for(method, name), []).append(method)
  texts = [
    text if len(methods_of_text) == 1 else f'{", ".join(own)}: {text}'
    for text, own in methods_of_text.items()
  ]
  servers = methods.server_rates() if name == 'server_learning_rate' else {}
  known = {m: value for m, value in having.items() if value is not None} | servers
  defaults = ', '.join(f'{who}: {value}' for who, value in known.items())
  texts += [f'Default: {defaults}.'] if known else []
  choices = _CHOICES.get(name, ())
  kind = kind_of(next(iter(known.values()), None), choices)
  extra = {'enum_values': choices} if choices else {}
  return Flag(kind, name, None, ' '.join(texts), extra)


@functools.cache
def _all() -> tuple[Flag, ...]:
  of_methods = {name: methods.options(name) for name in algorithms.METHODS}
  names = dict.fromkeys(option for own in of_methods.values() for option in own)
  return tuple(_option(name, of_methods) for name in names)


METHOD = _all()
