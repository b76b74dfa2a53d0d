"""Centralized: one model trained on the examples of all clients."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.algorithms.common.global_model import deployed
from fesem_jax.core import batching, client_map, sharding, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels, RoundInfo
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.core.traffic import Sent, Traffic
from fesem_jax.core.types import Params
from fesem_jax.data.attacks import check_models_only
from fesem_jax.training.local_sgd import local_sgd
from fesem_jax.training.one_client import Client


class CentralizedState(NamedTuple):
  params: Params  # [1, ...]
  sent: jax.Array  # [] float32 bytes of all training examples


@recorded
def centralized(local: LocalTraining) -> Algorithm:
  """Builds centralized training, a reference: one model on all clients' examples.

    w <- SGD from w on the training examples of all clients

  A round takes as many steps as all clients of the round take together in FedAvg, on
  batches of the same size from the examples of all clients.
  """

  def init(key, data):
    check_models_only(data, local, 'centralized', 'examples')
    example_bytes = data.x.dtype.itemsize * math.prod(data.example_shape)
    example_bytes += data.y.dtype.itemsize * math.prod(data.y.shape[1:])
    count = data.sizes().sum().astype(jnp.float32)
    return CentralizedState(tree.expand(local.model.init(key)), example_bytes * count)

  def step(state, data, cohort, key):
    sizes, most = data.sizes(cohort.ids), data.max_examples
    arrived = local.arrived(key, data, cohort.ids)
    counts = arrived & (sizes > 0)
    steps = batching.num_steps(local.schedule, sizes, most)
    steps = jnp.where(counts, steps, 0).sum()
    whole = sharding.on_all_devices(_gathered(data), local.mesh)
    width = batching.batch_width(local.schedule, most)
    bound = batching.most_steps(local.schedule, most) * len(sizes)
    schedule = local.schedule._replace(batch_size=width, steps=bound)
    global_local = local._replace(schedule=schedule, shared_start='off')

    def train(size, steps, params):
      client = Client(
        global_local, whole, jnp.int32(0), size, steps, jax.random.fold_in(key, 0),
        ClientModels(personal=params), local.rate(cohort),
      )  # fmt: skip
      model = local_sgd(client)
      return model.params, model.loss, model.finite

    args = whole.offsets[1:], steps[None], state.params
    params, loss, finite = client_map.side_by_side(train, 1)(*args)
    failed, count = ~finite[0], counts.sum()
    info = RoundInfo(
      loss[0], jnp.where(failed, count, 0), jnp.where(failed, 0, count), steps
    )
    return state._replace(params=params), info

  sent = Traffic(
    lambda inputs, drawn: Sent(0, 0), inputs=lambda state: state.sent, start_up=float
  )
  return Algorithm(local, init, step, deployed, traffic=sent)


def _gathered(data: FederatedData) -> FederatedData:
  """The examples of all clients as one client's, in the order of their ids."""
  offsets, y = jnp.asarray(data.offsets), jnp.asarray(data.y)
  order = jnp.argsort(jnp.asarray(data.client_ids))
  ends = jnp.cumsum((offsets[1:] - offsets[:-1])[order])
  places = jnp.arange(y.shape[0], dtype=jnp.int32)
  client = jnp.searchsorted(ends, places, side='right')
  start = jnp.concatenate([jnp.zeros(1, ends.dtype), ends])
  rows = offsets[order.at[client].get(mode='clip')] + places - start[client]
  if (shard_rows := data.shard_rows) is not None:
    device = jnp.searchsorted(jnp.asarray(shard_rows)[:, 1], rows, side='right')
    first = jnp.asarray(shard_rows).at[device, 0].get(mode='clip')
    rows += device * (y.shape[0] // shard_rows.shape[0]) - first
  return FederatedData(
    x=jnp.asarray(data.x).at[rows].get(mode='clip'),
    y=y.at[rows].get(mode='clip'),
    offsets=jnp.stack([jnp.zeros_like(ends[-1]), ends[-1]]),
    client_ids=jnp.zeros(1, jnp.int32),
    num_classes=data.num_classes,
    scale=data.scale,
    max_examples=y.shape[0],
    info=ClientInfo(np.array(['all'])),
    flat_from=data.flat_from,
    task=data.task,
  )
