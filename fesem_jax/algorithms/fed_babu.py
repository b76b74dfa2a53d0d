"""FedBABU: clients train the body below a fixed random head."""

from collections.abc import Sequence

from fesem_jax.algorithms.common import global_model, personal_head
from fesem_jax.algorithms.common.global_model import Averaging
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded


@recorded
def fed_babu(
  local: LocalTraining, *, head_layers: Sequence[str] = ('logits',)
) -> Algorithm:
  """Builds FedBABU (Oh et al., "FedBABU: Toward Enhanced Representation for Federated
  Image Classification", ICLR 2022).

    b_i <- SGD from b on client i, the head fixed at h       for i in the cohort
    b   <- sum_i alpha_i b_i                                 alpha_i = n_i / sum_j n_j

  The head h is the same random one for all clients and in all rounds. Clients deploy
  (b, h); fine-tuning then trains both parts for each client, which is the method's
  personalization.

  Args:
    head_layers: layers of the head: names, or patterns such as **/norm*.
  """
  personal_head.check_head(local, head_layers)
  body_layers = personal_head.other_layers(local, head_layers)

  def train(local, state, data, cohort, key, reduction):
    return global_model.train(
      local, state, data, cohort, key, reduction, layers=body_layers
    )

  def step(state, data, cohort, key):
    after, trained = global_model.train_and_average(
      local, state, data, cohort, key, Averaging(), train
    )
    # The server's noise for privacy is in all sums, but the head stays at h.
    body, _ = personal_head.parts(after.params, head_layers)
    head = personal_head.head_of(head_layers, state.params)
    return after._replace(params=tree.merge(body, head)), trained.info()

  init, sent = global_model.init(local), personal_head.traffic_of(local, head_layers)
  return Algorithm(local, init, step, global_model.deployed, train=train, traffic=sent)
