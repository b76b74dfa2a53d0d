"""The local training of one client again, step by step."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import client_map, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training.calls import Call
from fesem_jax.training.cohort import run
from fesem_jax.training.one_client import Client, Record
from fesem_jax.training.trained import Reduction


class ClientTask(NamedTuple):
  """The work of one client in a round; its own arrays are [1, ...]."""

  starts: ClientModels
  state: Any  # see `Client`, as for the next two
  given: Any
  broadcast: Any
  epochs: jax.Array | None  # [1] int32
  key: jax.Array  # [] of the round
  # Where each of its trainings ends as the whole cohort trains; None if not computed.
  ends: list[Params] | None


def task_of(call: Call, data: FederatedData, row: jax.Array, whole: bool) -> ClientTask:
  """The work of the client at place `row` [1] int32 of a cohort.

  `whole` trains the whole cohort too, which gives the ends as the round's arithmetic
  does; all local models then exist at once.
  """
  cohort, ends = Cohort(row, everyone=False), None
  if whole:

    def ends_of(client):
      given, state = client.given
      record: list[Record] = []
      client = dataclasses.replace(client, given=given, state=state, record=record)
      model, *_ = call.one(client)
      return model, None, [training.end for training in record]

    given = call.given, call.state
    again = call._replace(one=ends_of, given=given, state=None)
    trained = run(again, data, Reduction(keep=False))
    ends = tree.unstack(tree.take(trained.state, row), 0)
  own = call.state, call.given, call.epochs
  state, given, epochs = tree.rows_of(own, cohort)
  starts = call.starts.of(cohort)
  return ClientTask(starts, state, given, call.broadcast, epochs, call.key, ends)


def steps_of(
  call: Call, task: ClientTask, data: FederatedData, width: int
) -> list[Record]:
  """The trainings of a client again, with each step measured.

  The same client trains in all `width` places of a chunk, as many as in the round, so
  that each step is computed as it was beside others. Of `call`, only what is no array
  is used; `data` is the training split of this client alone, with the `max_examples` of
  all.
  """
  local, ids = call.local, jnp.zeros(width, jnp.int32)
  size, keys = data.sizes(ids[:1]), data.keys_of(task.key, ids)
  taken = local.num_steps(data, ids[:1], task.epochs)[0]
  rate, shared = local.rate(call.cohort), task.starts.shared
  own = task.starts._replace(shared=None), task.state, task.given
  own = jax.tree.map(lambda x: jnp.repeat(x, width, axis=0), own)

  def of_client(id, key, own):
    starts, state, given = own
    record: list[Record] = []
    client = Client(
      local, data, id, size[0], taken, key, starts._replace(shared=shared),
      local.rate_of_client(data, id, rate), state, given, task.broadcast,
      record=record, of_steps=True,
    )  # fmt: skip
    call.one(client)
    return record

  return tree.unstack(client_map.side_by_side(of_client, width)(ids, keys, own), 0)
