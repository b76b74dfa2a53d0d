"""FedALA: clients learn to mix global top layers into their own."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models, personal_head
from fesem_jax.core import batching, sums, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.local_sgd import local_sgd
from fesem_jax.training.one_client import for_each_batch, where
from fesem_jax.training.trained import mean_of_models
from fesem_jax.utils.ranges import NotNegative

# Share of an epoch's batches that A_i is learned on, and epochs of the first learning.
SAMPLE, START_EPOCHS = 0.8, 10


class FedAlaState(NamedTuple):
  params: Params  # [1, ...] w
  heads: Params  # [M, ...] h_i, top layers of w_i after its last training; else None
  head_weights: Params  # [M, ...] A_i, in [0, 1], of the same layers
  learned: jax.Array  # [M] bool, whether A_i has been learned once
  rounds: jax.Array  # [] int32 rounds done in which clients took part


@recorded
def fed_ala(
  local: LocalTraining,
  *,
  head_layers: Sequence[str] = ('logits',),
  ala_rate: NotNegative = 1.0,
) -> Algorithm:
  """Builds FedALA (Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized
  Federated Learning", AAAI 2023).

  With g the top layers of the global model w, and * by elements, in a round

    m_i <- h_i + (g - h_i) * A_i                       the lower layers are those of w
    A_i <- A_i - a (g - h_i) * grad F_i(m_i), then clipped to [0, 1], on each batch of a
           random 80 % of its examples
    w_i <- SGD from m_i on client i;  h_i is its top layers
    w   <- sum_i alpha_i w_i                  alpha_i = n_i / sum n_j over the cohort

  A_i starts at 1, and h_i as the first g. A client first learns A_i for 10 epochs, from
  the second round on, and later for one a round. It deploys m_i with the newest w.

  Args:
    local: settings of local training; its batch size also holds for the weights.
    head_layers: top layers: names, or patterns such as **/norm*.
    ala_rate: a, the learning rate of A_i; 0 keeps A_i at 1, which is FedAvg.
  """
  personal_head.check_head(local, head_layers)
  top = functools.partial(personal_head.head_of, head_layers)

  def init(key, data):
    start, count = local.model.init(key), data.num_clients
    heads = client_models.repeat(local, top(start), count, 'stacked')
    ones = jax.tree.map(jnp.ones_like, heads)
    never, rounds = jnp.zeros(count, bool), jnp.int32(0)
    return FedAlaState(tree.expand(start), heads, ones, never, rounds)

  def learn_weights(client, w, h, a):
    width = batching.batch_width(local.schedule, client.data.max_examples)
    batches = batching.batches_per_epoch(client.size, width)
    sampled = jnp.ceil(variable(SAMPLE) * batches - 1e-4).astype(jnp.int32)

    def local_step(t, weights, memory, gradient_of):
      loss, gradient = gradient_of(tree.merge(_mix(top(w), h, weights), w))

      def learn(weight, g, h, slope):
        return jnp.clip(weight - variable(ala_rate) * (g - h) * slope, 0.0, 1.0)

      new = jax.tree.map(learn, weights, top(w), h, top(gradient))
      return where(t % jnp.maximum(batches, 1) < sampled, new, weights), memory, loss

    learning = client.with_epochs(START_EPOCHS, client.inputs)
    learned = for_each_batch(learning, a, (), local_step)
    # Its loop also passes over batches that are not sampled.
    steps = jnp.where(learned.steps > 0, client.inputs * sampled, 0)
    return dataclasses.replace(learned, steps=steps)

  def update_client(client):
    w, (h, a) = client.received, client.state
    learned = learn_weights(client, w, h, a)
    start = tree.merge(_mix(top(w), h, learned.params), w)
    model = local_sgd(client, start=start)
    # Relative to `received`: the server does not know the head of the start.
    sent = client.send(model, client.received)
    return model.after(learned), sent, (top(model.params), learned.params)

  def step(state, data, cohort, key):
    w, learned = state.params, tree.rows_of(state.learned, cohort)
    epochs = jnp.where(learned, 1, START_EPOCHS) * (state.rounds > 0)
    personal = state.heads, state.head_weights
    trained = for_each_client(
      update_client, local, ClientModels(w), data, cohort, key,
      mean_of_models('by_examples', w), state=tree.rows_of(personal, cohort),
      inputs=epochs,
    )  # fmt: skip
    heads, weights = tree.with_rows(personal, cohort, trained.state)
    counts = trained.took_part()
    state = client_models.updated(state, cohort, counts, learned=epochs > 0)
    mean, rounds = sums.mean_of(trained.sums, w), state.rounds + counts.any()
    return FedAlaState(mean, heads, weights, state.learned, rounds), trained.info()

  def deployed(state, data):
    body, head = personal_head.parts(state.params, head_layers)
    return ClientModels(body, personal=_mix(head, state.heads, state.head_weights))

  # The A_i stay with their clients.
  return Algorithm(local, init, step, deployed)


def _mix(g: Params, heads: Params, weights: Params) -> Params:
  """The mix h + (g - h) * A of one client, or of each row; g may be [1, ...]."""
  return jax.tree.map(lambda g, h, a: h + (g - h) * a, g, heads, weights)
