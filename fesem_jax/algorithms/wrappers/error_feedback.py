"""Clients that add what they have not sent to what they send next."""

from fesem_jax.algorithms.wrappers.client_memory import with_client_memory
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.made_by import recorded


@recorded
def with_error_feedback(method: Algorithm) -> Algorithm:
  """Lets each client of a method keep what it has not sent (error feedback).

    v     <- P(w - s) + e    w trained from s
    sent  <- C(v)
    e     <- v - sent

  `local.sends` gives C, the compression, and P, the clipping and noise for privacy that
  is chained before it, if any; what P changes is not made up for.

  Seide et al. 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other
  Gradient Compression Schemes", ICML 2019. A client that is not drawn, drops out or
  fails keeps its residual e. It is M * P numbers on the devices. Before the first
  round, nothing is kept.

  Args:
    method: whose clients send one model in a round; its `local.sends` says what.

  Raises:
    UserError: when it starts, of a method whose clients send more models in a round, or
      only in some rounds.
  """
  return with_client_memory(method, ['residual'])
