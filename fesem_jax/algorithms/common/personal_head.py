"""Parts of methods that train or share head and body of a model separately."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
from flax.traverse_util import flatten_dict

from fesem_jax.core import parameter_names, sharding, sums, traffic, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.models.model_checks import check_parameters
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction
from fesem_jax.utils.errors import check


class PersonalHeadState(NamedTuple):
  """A body and heads, None in place of the other's layers; exchanged in LG-FedAvg."""

  body: Params  # [1, ...]
  heads: Params  # [M, ...]


def check_head(local: LocalTraining, head: Collection[str]) -> None:
  """Raises `UserError` unless `head` names some of the model's parameters, not all."""
  params = check_parameters(local.model)
  head = parameter_names.chosen(params, head, 'head_layers')
  divides = 0 < len(head) < len(jax.tree.leaves(params))
  check(divides, f'head_layers: must name some layers of {list(params)}, not all')


def other_layers(local: LocalTraining, head: Collection[str]) -> tuple[str, ...]:
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  return tuple(
    '/'.join(path)
    for path in flatten_dict(params)
    if not parameter_names.is_named(path, head)
  )


def parts(params: Params, head: Collection[str]) -> tuple[Params, Params]:
  return parameter_names.split(params, head)


def head_of(head: Collection[str], params: Params) -> Params:
  return parts(params, head)[1]


def init(
  local: LocalTraining, head: Collection[str]
) -> Callable[[jax.Array, FederatedData], PersonalHeadState]:
  def init(key, data):
    body, personal = parts(local.model.init(key), head)
    heads = sharding.split_clients(tree.repeat(personal, data.num_clients), local.mesh)
    return PersonalHeadState(tree.expand(body), heads)

  return init


def deployed(state: Any, data: FederatedData) -> ClientModels:
  return ClientModels(shared=state.body, personal=state.heads)


def traffic_of(local: LocalTraining, personal: Collection[str]) -> traffic.Traffic:
  size = traffic.bytes_of_model(local, but=tuple(personal))
  return traffic.same_for_all(size, size)


def averaging(local: LocalTraining, head: Collection[str], weighting: str) -> Algorithm:
  """Trains whole models from (b, h_i), and averages their bodies b."""
  check_head(local, head)

  def step(state, data, cohort, key):
    starts = deployed(state, data).of(cohort)
    reduction = sum_up_bodies(state.body, head, weighting)
    trained = train_cohort(local, starts, data, cohort, key, reduction)
    body = sums.mean_of(trained.sums, state.body)
    heads = tree.with_rows(state.heads, cohort, trained.folded)
    return PersonalHeadState(body, heads), trained.info()

  return Algorithm(
    local, init(local, head), step, deployed, traffic=traffic_of(local, head)
  )


def sum_up_bodies(body: Params, head: Collection[str], weighting: str) -> Reduction:
  """Adds up bodies about the old one [1, ...], and keeps heads."""

  def fold(trained, starts, total):
    bodies, personal = parts(trained.params, head)
    weights = trained.weights(weighting)
    return personal, sums.add_to_one(total, bodies, weights, starts.shared)

  return Reduction(fold, sums.no_sums(body), keep=False)
