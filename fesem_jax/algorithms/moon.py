"""MOON: a contrastive loss between local and global representations."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import client_models, global_model
from fesem_jax.core import sums, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Params
from fesem_jax.models.contrast import contrasted
from fesem_jax.models.model_checks import check_parameters
from fesem_jax.models.starting import whole_model
from fesem_jax.training.cohort import for_each_client
from fesem_jax.training.local_sgd import local_sgd
from fesem_jax.training.trained import mean_of_models
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import NotNegative, Positive


class MoonState(NamedTuple):
  params: Params  # [1, ...] x
  client_params: Params  # [M, ...] v_i


@recorded
def moon(
  local: LocalTraining, *, moon_mu: NotNegative = 1.0, moon_temperature: Positive = 0.5
) -> Algorithm:
  """Builds MOON (Li et al., "Model-Contrastive Federated Learning", CVPR 2021).

    w_i <- SGD from x on F_i(w) + mu mean_s l_s(w)       for i in the cohort
    l_s  = -log(p / (p + q))           p = exp(cos(R_w(s), R_x(s)) / temperature)
                                       q = exp(cos(R_w(s), R_v_i(s)) / temperature)
    v_i <- w_i
    x   <- sum_i alpha_i w_i           alpha_i = n_i / sum n_j

  for the examples s of client i, where R_w(s) is the input of the layer `logits` of
  model w, and v_i the client's last local model, at first x. R_x and R_v_i are without
  Dropout. The reported training loss includes mu l_s.

  Args:
    moon_mu: mu, the weight of the contrastive loss; 0 is FedAvg.
    moon_temperature: divides the cosines of the contrastive loss, positive.

  Raises:
    UserError: on a model without that layer, or without others; or, when it starts, if
      the layer gets no representation (`with_inputs_of`).
  """
  local.check_no_statistics('moon')
  layers = tuple(check_parameters(whole_model(local.model)))
  fits = 'logits' in layers and len(layers) > 1
  check(fits, 'model: moon needs a layer logits, and others before it')

  def contrast(like, unlike):
    return contrasted(local.model, 'logits', moon_mu, moon_temperature, like, unlike)

  def init(key, data):
    start = local.model.init(key)
    x = jax.ShapeDtypeStruct((2, *data.example_shape), jnp.float32)
    jax.eval_shape(contrast(start, start).apply, start, x)
    personal = client_models.repeat(local, start, data.num_clients, 'stacked')
    return MoonState(tree.expand(start), personal)

  def update_client(client):
    contrasting = client.with_model(contrast(client.received, client.state))
    model = local_sgd(contrasting)
    return model, client.send(model, client.received), model.params

  def step(state, data, cohort, key):
    x, last = state.params, tree.rows_of(state.client_params, cohort)
    trained = for_each_client(
      update_client, local, ClientModels(x), data, cohort, key,
      mean_of_models('by_examples', x), state=last,
    )  # fmt: skip
    personal = tree.with_rows(state.client_params, cohort, trained.state)
    return MoonState(sums.mean_of(trained.sums, x), personal), trained.info()

  # Two frozen models also see each batch.
  size = traffic.bytes_of_model(local)
  sent = traffic.same_for_all(size, size, passes_of_step=2)
  return Algorithm(local, init, step, global_model.deployed, traffic=sent)
