"""LG-FedAvg: personal bodies below a shared head."""

from collections.abc import Sequence

from fesem_jax.algorithms.common import personal_head
from fesem_jax.algorithms.fed_per import fed_per
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded


@recorded
def lg_fed_avg(
  local: LocalTraining, *, head_layers: Sequence[str] = ('logits',)
) -> Algorithm:
  """Builds LG-FedAvg (Liang et al., "Think Locally, Act Globally: Federated Learning
  with Local and Global Representations", 2020).

    (b_i, h_i) <- SGD from (b_i, h) on client i       for i in the cohort
    h          <- sum_i alpha_i h_i                   alpha_i = n_i / sum_j n_j

  It is FedPer with the layers exchanged: clients share the head and keep all other
  layers. All b_i start from one random body.

  Args:
    head_layers: layers that clients share: names, or patterns such as **/norm*.
  """
  personal_head.check_head(local, head_layers)
  personal = personal_head.other_layers(local, head_layers)
  return fed_per(local, head_layers=personal)
