"""FedPer: a shared body and a personal head for each client."""

from collections.abc import Sequence

from fesem_jax.algorithms.common import personal_head
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded


@recorded
def fed_per(
  local: LocalTraining, *, head_layers: Sequence[str] = ('logits',)
) -> Algorithm:
  """Builds FedPer (Arivazhagan et al., "Federated Learning with Personalization
  Layers", 2019).

    (b_i, h_i) <- SGD from (b, h_i) on client i       for i in the cohort
    b          <- sum_i alpha_i b_i                   alpha_i = n_i / sum_j n_j

  Args:
    head_layers: layers that stay with each client: names, or patterns such as **/norm*.
  """
  return personal_head.averaging(local, head_layers, 'by_examples')
