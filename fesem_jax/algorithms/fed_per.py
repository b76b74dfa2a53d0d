"""FedPer: a shared body and a personal head for each client.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.
"""

from collections.abc import Sequence

from fesem_jax.algorithms.common import personal_head
from fesem_jax.algorithms.common.personal_head import PersonalHeadState
from fesem_jax.core import sums, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Weighting


@recorded
def fed_per(
  local: LocalTraining,
  *,
  head_layers: Sequence[str] = ('logits',),
  weighting: Weighting = 'by_examples',
) -> Algorithm:
  """Builds FedPer.

    (b_i, h_i) <- SGD from (b, h_i) on client i       for i in the cohort
    b          <- sum_i alpha_i b_i                   alpha_i = n_i / sum_j n_j

  Args:
    local: how clients train.
    head_layers: names of the layers that stay with each client, or patterns of
      parameters such as **/norm* at any depth.
    weighting: 'by_examples' (alpha_i above) or 'uniform'.

  Raises:
    UserError: on an unknown layer, or if no layer is left to share.
  """
  personal_head.check_head(local, head_layers)

  def step(state, data, cohort, key):
    starts = personal_head.deployed(state, data).of(cohort)
    reduction = personal_head.sum_up_bodies(state.body, head_layers, weighting)
    trained = train_cohort(local, starts, data, cohort, key, reduction)
    body = sums.mean_of(trained.sums, state.body)
    heads = tree.with_rows(state.heads, cohort, trained.folded)
    return PersonalHeadState(body, heads), trained.info()

  return Algorithm(
    local,
    personal_head.init(local, head_layers),
    step,
    personal_head.deployed,
    traffic=personal_head.traffic_of(local, head_layers),
  )
