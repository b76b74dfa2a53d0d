"""Local training of a cohort: one compiled loop over chunks of clients."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.cohorts.sampling import coin
from fesem_jax.core import batching, client_map, prng_streams
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.chunk_order import ChunkSize
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import no_sums
from fesem_jax.core.types import Cohort
from fesem_jax.training.chunk import Clients, Shared, plan
from fesem_jax.training.objective import Objective
from fesem_jax.training.reduction import Reduction
from fesem_jax.training.trained import Trained
from fesem_jax.utils.errors import UserError

_PLAIN = Objective()
_KEEP = Reduction()


class Call(NamedTuple):
  """Arguments of a call of `train_cohort`; see there."""

  local: LocalTraining
  starts: ClientModels
  cohort: Cohort
  key: jax.Array
  objective: Objective


_CALLS: contextvars.ContextVar[list[Call] | None] = contextvars.ContextVar(
  'calls', default=None
)


@contextlib.contextmanager
def calls_noted() -> Iterator[list[Call]]:
  """Notes the calls of `train_cohort` within the block, to train one client again.

  What a round traces is noted as it is traced: a caller within the same trace can
  compute with it. Nothing changes in what is trained.
  """
  calls: list[Call] = []
  token = _CALLS.set(calls)
  try:
    yield calls
  finally:
    _CALLS.reset(token)


def train_cohort(
  local: LocalTraining,
  starts: ClientModels,
  data: FederatedData,
  cohort: Cohort,
  key: jax.Array,
  objective: Objective = _PLAIN,
  reduction: Reduction = _KEEP,
) -> Trained:
  """Trains every client of the cohort from its start.

  Args:
    local: see `LocalTraining`.
    starts: the cohort's S models to start from. Where they are the clients' own, the
      local models take their memory.
    data: training split.
    cohort: S clients; S is a multiple of the device count.
    key: key of this round; each client folds its id into it.
    objective: what clients minimize; their loss alone by default.
    reduction: of their models; all are kept by default.

  Returns:
    `Trained`, split over the mesh.

  Raises:
    UserError: if `starts` are those of other clients than the cohort's, or `epochs` of
      the objective come with a schedule of steps.
    AssertionError: if another argument does not have one row for each of the S clients.
  """
  local, objective = _within_bound(local, objective)
  noted = _CALLS.get()
  if noted is not None:
    noted.append(Call(local, starts, cohort, key, objective))
  penalty, anchor, correction, epochs, _, factors, *_ = objective
  count = cohort.ids.shape[0]
  for x in jax.tree.leaves(starts[1:]):
    if x.shape[:1] != (count,):
      raise UserError(
        f'`starts` has an array of shape {x.shape}, but the cohort has {count} '
        'clients; if it holds the models of all clients, pass `starts.of(cohort)`.'
      )
  parts = (anchor and anchor[1:], correction and correction.own, epochs, factors)
  chex.assert_tree_shape_prefix(parts, (count,))
  sizes = data.sizes(cohort.ids)
  steps = batching.num_steps(local.schedule, sizes, data.max_examples, epochs)
  arrived = ~coin(key, data, cohort.ids, local.dropout_rate, prng_streams.DROPOUT)
  steps = jnp.where(arrived, steps, 0)
  if penalty is not None:
    penalty = jnp.broadcast_to(jnp.asarray(penalty, jnp.float32), sizes.shape)
  chosen = plan(local, starts, data, count, objective, reduction)

  own_start, own_correction = (
    starts._replace(shared=None),
    correction and correction.own,
  )
  into, replaced = reduction.into, Trained._make([None] * len(Trained._fields))
  if chosen.in_place:  # The clients' own models: read, then replaced.
    into, own_start = starts.own, own_start._replace(own=None)
  if chosen.replaces_correction:  # Likewise.
    own_correction, replaced = None, replaced._replace(folded=own_correction)
  own = Clients(
    steps, arrived, penalty, own_correction, own_start,
    anchor and anchor._replace(shared=None), factors,
  )  # fmt: skip
  shared = Shared(
    starts.shared,
    anchor and anchor.shared,
    None if correction is None else (correction.common, correction.applies),
    data,
    key,
    local.rate(cohort),
    reduction.known,
  )
  sums = no_sums(starts.shared) if reduction.mean_by else reduction.sums
  (params, trained), sums = client_map.map_clients(
    chosen.train,
    client_map.Clients(
      cohort.ids,
      steps,
      own,
      into=(into, replaced),
      group=chosen.together.group(starts),
    ),
    shared,
    ChunkSize(chosen.together.count, chosen.at_a_time, starts.num_models()),
    empty=data.num_clients,
    mesh=local.mesh,
    sums=sums,
    finish=chosen.finish,
    replaces=chosen.in_place or chosen.replaces_correction,
  )
  return trained._replace(ids=cohort.ids, params=params, sums=sums)


def _within_bound(
  local: LocalTraining, objective: Objective
) -> tuple[LocalTraining, Objective]:
  """Settings that have room for all epochs of an objective, and it with their bound.

  What is sized by the schedule (rows of a shared start, steps of a replay) would be too
  small for more epochs than the schedule's.
  """
  epochs, most = objective.epochs, objective.most_epochs
  if epochs is None:
    return local, objective
  if local.schedule.steps:
    raise UserError('`epochs` of an objective need a schedule of epochs, not of steps.')
  known = not isinstance(epochs, jax.core.Tracer)
  if not most and known and getattr(epochs, 'is_fully_addressable', True):
    most = max(1, int(np.asarray(epochs).max(initial=0)))
  if not most:
    return local._replace(shared_start='off'), objective
  objective = objective._replace(epochs=jnp.minimum(epochs, most), most_epochs=most)
  return local._replace(schedule=local.schedule._replace(epochs=most)), objective
