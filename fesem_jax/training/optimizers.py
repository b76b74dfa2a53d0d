"""Local optimizers by their names, with the update rules of PyTorch."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import optax

from fesem_jax.core import hyperparameters
from fesem_jax.utils.ranges import NotNegative, Positive, Share, checked

Name = Literal['sgd', 'momentum', 'adam', 'adamw']
NAMES: tuple[str, ...] = get_args(Name)

# `torch.nn.utils.clip_grad_norm_` adds it to the norm that it divides by.
_NORM_EPSILON = 1e-6


@checked
def local_optimizer(
  optimizer: Name,
  learning_rate: Positive,
  *,
  momentum: Share = 0.9,
  weight_decay: NotNegative = 0.0,
  clip_norm: NotNegative = 0.0,
) -> optax.GradientTransformation:
  """An optimizer of clients by its name, with the steps of PyTorch's.

  With g the gradient of the local objective, penalty and correction included,

    g <- g min(1, clip_norm / (|g| + 1e-6))               with `clip_norm`
    g <- g + weight_decay w                               but for adamw
    sgd        w <- w - eta g
    momentum   b <- momentum b + g                        b is 0 before the first step
               w <- w - eta b
    adam       m <- beta1 m + (1 - beta1) g,  v <- beta2 v + (1 - beta2) g^2
               w <- w - eta m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)
    adamw      w <- w - eta weight_decay w, then as adam

  as torch.optim.SGD, Adam, AdamW and torch.nn.utils.clip_grad_norm_; |g| is over all
  parameters that learn. The state is reset in every round. Optax has other optimizers.

  Args:
    optimizer: 'sgd', 'momentum', 'adam', or 'adamw', whose weight decay is decoupled.
    learning_rate: eta.
    momentum: factor of 'momentum'; 0 is plain SGD.
    weight_decay: 0 is none.
    clip_norm: L2 norm of the gradient of a step; 0 is none.
  """
  clips, decays, moves_on = clip_norm > 0, weight_decay > 0, momentum > 0

  def make(rate, momentum, weight_decay, clip_norm):
    parts = [clip_by_norm(clip_norm)] if clips else []
    if decays and optimizer != 'adamw':
      parts.append(optax.add_decayed_weights(weight_decay))
    if optimizer == 'adam':
      parts.append(optax.adam(rate))
    elif optimizer == 'adamw':
      parts.append(optax.adamw(rate, weight_decay=weight_decay))
    elif optimizer == 'momentum' and moves_on:
      parts.append(optax.sgd(rate, momentum))
    else:
      parts.append(optax.sgd(rate))
    return parts[0] if len(parts) == 1 else optax.chain(*parts)

  return hyperparameters.optimizer(
    make, learning_rate, momentum, weight_decay, clip_norm
  )


def clip_by_norm(bound: jax.Array | float) -> optax.GradientTransformation:
  """Shortens a gradient to the L2 norm `bound`; what is not finite stays so."""

  def shorten(gradients, _):
    norm = optax.tree.norm(gradients)
    share = jnp.minimum(1.0, bound / (norm + _NORM_EPSILON))
    return jax.tree.map(lambda g: g * share, gradients)

  return optax.stateless(shorten)
