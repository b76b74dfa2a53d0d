"""FedPer: a shared body and a head of each client's own.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax import sharding, sums, tree
from fesem_jax.base import Params
from fesem_jax.errors import UserError, argument, check_choice
from fesem_jax.local import WEIGHTINGS, train_cohort
from fesem_jax.local_sgd import LocalTraining
from fesem_jax.method import Algorithm, ClientModels


class PersonalHeadState(NamedTuple):
  """State of FedPer and FedRep; each part holds None in place of the other's layers."""

  body: Params  # [1, ...]
  heads: Params  # [M, ...]


def fed_per(
  local: LocalTraining,
  *,
  head_layers: Sequence[str] = ('logits',),
  weighting: str = 'by_examples',
) -> Algorithm:
  """Builds FedPer.

    (b_i, h_i) <- SGD from (b, h_i) on client i       for i in the cohort
    b          <- sum_i alpha_i b_i                   alpha_i = n_i / sum_j n_j

  Args:
    local: how clients train.
    head_layers: names of the layers that stay with each client.
    weighting: 'by_examples' (alpha_i above) or 'uniform'.

  Raises:
    UserError: on an unknown weighting or layer, or if no layer is left to share.
  """
  check_choice('weighting', weighting, WEIGHTINGS)
  check_head(local, head_layers)

  def step(state, data, cohort, key):
    starts = deployed(state, data).of(cohort)
    trained = train_cohort(
      local, starts, data, cohort, key, keep=False,
      fold=sum_up_bodies(head_layers, weighting), sums=sums.no_sums(state.body),
    )  # fmt: skip
    body = sums.mean_of(trained.sums, state.body)
    heads = tree.with_rows(state.heads, cohort, trained.folded)
    return PersonalHeadState(body, heads), trained.info()

  return Algorithm(init(local, head_layers), step, deployed)


def check_head(local: LocalTraining, head: Collection[str]) -> None:
  """Raises `UserError` unless `head` names some layers of the model, but not all."""
  layers = tuple(jax.eval_shape(local.model.init, jax.random.key(0)))
  for name in head:
    check_choice('head_layers', name, layers)
  if not 0 < len(set(head)) < len(layers):
    chosen = argument('head_layers', ','.join(head))
    raise UserError(f'{chosen} must name some of {", ".join(layers)}, but not all.')


def parts(params: Params, head: Collection[str]) -> tuple[Params, Params]:
  """Body and head of a model or stack, None in place of the layers of the other."""
  body = {name: None if name in head else x for name, x in params.items()}
  return body, {name: x if name in head else None for name, x in params.items()}


def init(local: LocalTraining, head: Collection[str]):
  """The `init` of both methods: one random model, its head copied for each client."""

  def init(key, data):
    body, own = parts(local.model.init(key), head)
    heads = sharding.split_clients(tree.repeat(own, data.num_clients), local.mesh)
    return PersonalHeadState(tree.expand(body), heads)

  return init


def deployed(state, data) -> ClientModels:
  """The `deployed` of both methods."""
  del data
  return ClientModels(shared=state.body, own=state.heads)


def sum_up_bodies(head: Collection[str], weighting: str):
  """A fold of `train_cohort` that adds up bodies and keeps heads."""

  def fold(trained, starts, total):
    body, own = parts(trained.params, head)
    first = jnp.zeros(trained.ids.shape, jnp.int32)
    weights = trained.weights(weighting)
    return own, sums.add_rows(total, body, first, weights, starts.shared)

  return fold
