"""Notes on numbers of local steps with which methods or options have no effect."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fesem_jax.utils.errors import argument

from . import flags as experiment_flags
from . import methods, plugins

# Methods of which clients begin where the option pulls their models to.
_PULLED = {
  'fed_prox': 'prox_mu', 'fed_dane': 'prox_mu', 'fed_group': 'prox_mu',
  'fesem': 'prox_lambda', 'fesem_ma': 'prox_lambda',
}  # fmt: skip

# Methods of which clients take other steps than those that the flags count.
_OTHER_STEPS = 'centralized', 'fed_rep', 'fed_sgd', 'p_fed_me', 'per_fed_avg'


def notes(config: dict[str, Any], sizes: Sequence[int] | jax.Array) -> list[str]:
  """Sentences on numbers of local steps with which a method does nothing of its own.

  `sizes` are the training examples of each client.
  """
  name = config['algorithm']
  if plugins.is_own(name) or config.get('client_work'):
    return []
  config = experiment_flags.filled(config)
  width, epochs = config['batch_size'], config['local_epochs']
  have = np.asarray(sizes)
  have = have[have > 0]
  batches = -(-have // width) if width else np.ones_like(have)
  fixed = config['local_steps']
  steps = np.full_like(have, fixed) if fixed else epochs * batches
  one_number = len(steps) > 0 and bool((steps == steps[0]).all())
  if name == 'fed_nova' and not config['straggler_fraction'] and one_number:
    return [f'all clients take {steps[0]} local steps a round: fed_nova is fed_avg.']
  needed = 3 if config.get('meta_gradient') == 'hessian_free' else 2
  few = int(np.count_nonzero(steps < needed))
  if name == 'per_fed_avg' and few:
    return [
      f'{few} of {len(steps)} clients have fewer batches in a round than the {needed} '
      'of one step of per_fed_avg, and do not train; raise '
      f'{argument("local_epochs")} or lower {argument("batch_size")}.'
    ]
  return _notes_on_one_step(config) if one_number and steps[0] == 1 else []


def _notes_on_one_step(config: dict[str, Any]) -> list[str]:
  """The `notes` on options without effect where all clients take one step a round."""
  sentences, name = [], config['algorithm']
  reason = 'all clients take one local step a round'
  option = _PULLED.get(name, '')
  # FeSEM is more than its default penalty, FedProx is not.
  default = 0.0 if name == 'fed_prox' else methods.options(name).get(option)
  if option and config[option] and config[option] != default:
    simpler = '; fed_prox is fed_avg' if name == 'fed_prox' else ''
    sentences.append(
      f'{argument(option, config[option])} has no effect: {reason}, from the model '
      f'that it pulls them to{simpler}.'
    )
  if config['keep_optimizer_state'] or name in _OTHER_STEPS:
    return sentences
  reason += ', and the optimizer begins each round anew; '
  reason += f'{argument("keep_optimizer_state")} keeps its state.'
  chosen = config['optimizer']
  if chosen == 'momentum' and not config['nesterov']:
    momentum = argument('momentum', config['momentum'])
    sentences.append(f'{momentum} has no effect: {reason}')
  if chosen in ('adam', 'adamw'):
    named = argument('optimizer', chosen)
    sentences.append(f'{named} follows the signs of gradients alone: {reason}')
  return sentences
