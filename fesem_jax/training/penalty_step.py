"""The penalty lambda |w - a|^2 in one local step (Eq. 7), in the two forms of weights.

Weights that a client holds itself get a gradient more, whatever the optimizer:

  g + 2 lambda (w - a).

A kernel that it holds as changes to its start a (`shared_start`) is never formed, so
there is no w to subtract a from. Plain SGD of rate eta makes

  w_{t+1} - a = (1 - 2 eta lambda) (w_t - a) - eta g_t,

and w_t - a is a sum over earlier steps: each keeps a share of 1 - 2 eta lambda.
"""

import jax

from fesem_jax.core.types import Params


def with_pull(
  grads: Params, params: Params, anchor: Params, prox: jax.Array | float | None
) -> Params:
  """Gradients of the loss with the penalty, from those of the loss alone.

  `params` are w, `anchor` is a, and `prox` [] float32 is lambda; None is 0.
  """
  if prox is None:
    return grads
  return jax.tree.map(lambda g, w, a: g + 2 * prox * (w - a), grads, params, anchor)


def kept_share(
  rate: jax.Array | float, prox: jax.Array | float | None
) -> jax.Array | float:
  """Share of w - a that a step of plain SGD leaves.

  `rate` [] float32 is eta, and `prox` [] float32 is lambda; None is 0.
  """
  return 1.0 if prox is None else 1 - 2 * rate * prox
