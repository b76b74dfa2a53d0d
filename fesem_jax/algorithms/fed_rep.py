"""FedRep: as FedPer, but clients train the head first, then the body."""

from collections.abc import Sequence

from fesem_jax.algorithms.common import personal_head
from fesem_jax.algorithms.common.personal_head import PersonalHeadState
from fesem_jax.core import sums, tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.local_sgd import local_sgd
from fesem_jax.utils.ranges import Count


@recorded
def fed_rep(
  local: LocalTraining,
  *,
  head_layers: Sequence[str] = ('logits',),
  head_epochs: Count = 5,
) -> Algorithm:
  """Builds FedRep (Collins et al., "Exploiting Shared Representations for Personalized
  Federated Learning", ICML 2021).

    h_i <- SGD from h_i on client i, the body fixed at b        for i in the cohort
    b_i <- SGD from b on client i, the head fixed at h_i
    b   <- mean_i b_i

  Both parts visit the examples in the same order. The reported training loss is that of
  the second. A client that fails in either part counts as failed.

  Args:
    local: settings of local training, for the body.
    head_layers: layers that stay with each client: names, or patterns such as **/norm*.
    head_epochs: local epochs of the head.
  """
  personal_head.check_head(local, head_layers)
  body_layers = personal_head.other_layers(local, head_layers)

  def update_client(client):
    first = local_sgd(client.with_epochs(head_epochs), layers=head_layers)
    model = local_sgd(client, start=first.params, layers=body_layers)
    return model.after(first), client.send(model, client.received, body_layers), None

  def step(state, data, cohort, key):
    starts = personal_head.deployed(state, data).of(cohort)
    trained = for_each_client(
      update_client, local, starts, data, cohort, key,
      personal_head.sum_up_bodies(state.body, head_layers, 'uniform'),
    )  # fmt: skip
    body = sums.mean_of(trained.sums, state.body)
    heads = tree.where(trained.took_part(), trained.folded, starts.personal)
    heads = tree.with_rows(state.heads, cohort, heads)
    return PersonalHeadState(body, heads), trained.info()

  init = personal_head.init(local, head_layers)
  sent = personal_head.traffic_of(local, head_layers)
  return Algorithm(local, init, step, personal_head.deployed, traffic=sent)
