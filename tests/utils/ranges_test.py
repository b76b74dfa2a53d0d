"""Numbers just beyond every range, and unknown choices, are refused."""

import importlib
import inspect
import pkgutil
from typing import Literal, get_args, get_origin

import numpy as np
import pytest

import fesem_jax
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.ranges import Range

# Numbers of all other names are at least 0.
ENDS = {
  'at least 0': 'clients_per_chunk clients_per_round init_clients',
  'at least 1': """check_every clients_per_chunk clients_per_round count epochs every
    groups head_epochs init_clients init_epochs init_restarts inner_steps min_size
    num_classes num_clusters num_vectors per_client rounds stride warmup_rounds""",
  'above 0': """amp_sigma clip dyn_alpha eps_scaling few_mu gwc_eps gwc_gamma
    inner_learning_rate learning_rate moon_temperature pfedme_lambda
    server_learning_rate tau""",
  'at least 0 and at most 1': 'apfl_alpha straggler_fraction',
  'at least 0 and below 1': """attack_fraction beta1 beta2 delta dropout_rate fraction
    momentum trim""",
  'above 0 and below 1': 'aggregation_probability',
  'at most 1 and above 0': 'share',
  'at least -1 and at most 1': 'stocfl_tau',
  'at least 0 and below 4294967296': 'seed',
  'at least 1 and at most 5': 'strength',
  'at least 0 and at most 100': 'sigma',
  'at least 0 and at most 1024': 'side',
  'at least 1 and at most 1000': 'groups',
  'at least 0 and at most 10000': 'max_clusters',
  'at least 1 and at most 10000': 'max_clusters',
  'at least 0 and at most 1000000': 'alpha beta noise',
  'at least 0 and at most 10000000': 'num_clients',
  'at least 0 and at most 1e+12': 'variance',
  'at most 1e+300 and above 0': 'alpha',
}
LATER = {'LocalTraining', 'Machine', 'Schedule', 'Spec', 'wrappers'}  # By a run.


def types_and_ranges(hint):
  parts = get_args(hint)
  spans = [(parts[0], part) for part in parts if isinstance(part, Range)]
  return sum(map(types_and_ranges, parts), spans)


def test_calls_refuse_numbers_just_beyond_their_ranges_and_unknown_choices():
  for module in pkgutil.walk_packages(fesem_jax.__path__, 'fesem_jax.'):
    for name, function in vars(importlib.import_module(module.name)).items():
      if name.startswith('_') or getattr(function, '__module__', 0) != module.name:
        continue
      try:
        parameters = inspect.signature(function).parameters
      except (TypeError, ValueError):  # No function.
        continue
      hints = {n: p.annotation for n, p in parameters.items()}
      needed = {n: 1 for n, p in parameters.items() if p.default is p.empty}
      needed |= {n: 0.5 for n in needed if 'float' in str(hints[n])}
      choices = {n for n in hints if get_origin(hints[n]) is Literal}
      needed |= {n: get_args(hints[n])[0] for n in choices & needed.keys()}
      for each, hint in hints.items():
        wrong = ['nonsense'] * (each in choices and hasattr(function, '__wrapped__'))
        for kind, span in types_and_ranges(hint):
          ends = [end for end, names in ENDS.items() if each in names.split()]
          assert str(span) in (ends or ['at least 0']), (name, each)
          step, (least, most, above, below) = 1 if kind is int else 1e-9, span
          beyond = [least - step, most * (1 + 1e-9) + step, above, below]
          wrong += [kind(x) for x in beyond if np.isfinite(x)]
          wrong += [np.nan] * (kind is float)
        for value in wrong if name not in LATER else ():
          with pytest.raises(UserError, match=f'{each}: (must be|unknown)'):
            function(**needed | {each: value})
