"""Local training of a chunk of clients, and the reduction of their models."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.cohorts.sampling import client_keys
from fesem_jax.core import client_map
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import add_to_one
from fesem_jax.core.types import Params
from fesem_jax.training.local_sgd import Ends, Terms, Work, train_chunk
from fesem_jax.training.objective import Objective
from fesem_jax.training.reduction import Reduction
from fesem_jax.training.sent_models import as_sent
from fesem_jax.training.shared_kernels import SideBySide, choose
from fesem_jax.training.shared_start import SharedStart
from fesem_jax.training.trained import Trained


class Clients(NamedTuple):
  """What belongs to each client of a cohort or chunk; None where there is none."""

  steps: jax.Array  # [C] int32 local steps
  arrived: jax.Array  # [C] bool, False for a client that dropped out
  penalty: jax.Array | None  # [C] float32
  correction: Params  # [C, ...] its own part
  start: ClientModels  # its choice, or its own model or layers
  anchor: ClientModels | None  # likewise
  factors: jax.Array | None  # [C, N_max] float32 of the losses of its examples


class Shared(NamedTuple):
  """What all clients of a cohort see."""

  starts: Params  # [R, ...] shared models to start from
  anchors: Params  # [R', ...] shared models that the penalty pulls to
  correction: tuple[Params, Any] | None  # the common part, and whether it applies
  data: FederatedData  # training split
  key: jax.Array  # of the round
  rate: jax.Array | None  # see `LocalTraining.rate`
  known: Any  # see `Reduction`


class _Done(NamedTuple):
  """Clients that have trained, before anything became of their models."""

  trained: Trained  # without models
  params: Params  # [C, ...] local models but for the kernels that are kept as changes
  changes: Any  # [C, ...] of these kernels
  start: ClientModels  # see `Clients`
  keys: jax.Array  # [C] of the clients in this round


class _OfAll(NamedTuple):
  """What is known of a chunk's clients together."""

  together: SharedStart  # the kernels that they start from
  starts: Params  # see `Shared`
  data: FederatedData  # see `Shared`
  known: Any  # see `Shared`


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """How a cohort is trained: what is decided before any client is looked at."""

  local: LocalTraining
  objective: Objective
  reduction: Reduction
  together: SideBySide  # clients of a chunk
  at_a_time: int  # clients of a chunk whose whole models exist at once
  in_place: bool  # whether local models take the memory of those they start from
  unformed: bool  # whether models are summed up without being formed

  @property
  def replaces_correction(self) -> bool:
    """Whether what is kept of clients overwrites their corrections."""
    return self.objective.correction is not None and self.objective.correction.replaced

  def train(self, chunk: client_map.Chunk, shared: Shared, sums: Any) -> Any:
    """Trains a chunk: the body of `client_map.map_clients`."""
    own, data = chunk.own, shared.data
    start = own.start._replace(shared=shared.starts)
    if self.in_place:
      start = start._replace(own=chunk.into[0])
    sizes = data.sizes(chunk.ids)
    keys = client_keys(shared.key, data, chunk.ids)
    exist = chunk.ids < data.num_clients
    rest, together = self.together.split(start, exist)
    origin = rest.params(own.arrived.shape[0])
    ends = self._ends(chunk, shared, origin, keys, together)
    old = chunk.into[1].folded if self.replaces_correction else None
    steps = self._steps(own, sizes)
    trained = Trained(
      chunk.ids, None, ends.loss, sizes, ends.finite, own.arrived, steps,
      correction=old,
    )  # fmt: skip
    done = _Done(trained, ends.params, ends.changes, start._replace(shared=None), keys)
    of_all = _OfAll(together, shared.starts, data, shared.known)
    return (done, of_all), sums

  def _steps(self, own: Clients, sizes: jax.Array) -> jax.Array:
    """[C] int32 steps; 0 in empty places and where a device lacks a client's rows."""
    return jnp.where(sizes > 0, own.steps, 0)

  def _ends(
    self,
    chunk: client_map.Chunk,
    shared: Shared,
    origin: Params,
    keys: jax.Array,
    together: SharedStart,
  ) -> Ends:
    """Where the local training of a chunk ends, from `origin` [C, ...]."""
    own, data = chunk.own, shared.data
    anchor = own.anchor
    if anchor is not None:
      anchor = anchor._replace(shared=shared.anchors).params(own.arrived.shape[0])
    added = vary = None
    if self.objective.correction is not None:
      assert shared.correction is not None
      vary, (common, applies) = self.objective.correction.vary, shared.correction
      mine = chunk.into[1].folded if self.replaces_correction else own.correction
      difference = jax.tree.map(jnp.subtract, common, mine)
      added = jax.tree.map(lambda x: jnp.where(applies, x, 0.0), difference)
    return train_chunk(
      self.local,
      data,
      origin,
      Work(chunk.ids, self._steps(own, data.sizes(chunk.ids)), keys),
      shared=together,
      terms=Terms(
        anchor,
        own.penalty,
        added,
        vary,
        self.objective.layers,
        own.factors,
        self.objective.step,
      ),
      rate=shared.rate,
    )

  def finish(self, done: _Done, of_all: _OfAll, sums: Any) -> Any:
    """What becomes of trained clients: results, and the sums with theirs."""
    reduction, trained = self.reduction, done.trained
    if self.unformed:
      sums = self._add_unformed(done, of_all, sums, trained.weights(reduction.mean_by))
      return (None, trained), sums
    start = done.start._replace(shared=of_all.starts)
    params = of_all.together.models(done.params, done.changes, trained.finite)
    trained = trained._replace(as_trained=params)
    if reduction.sent != 'nothing':
      received = start
      if reduction.sent == 'own':
        received = ClientModels(start.own, jnp.arange(trained.ids.shape[0]))
      params = as_sent(
        of_all.data, trained.ids, received, params, done.keys, self.objective.layers
      )
    trained, folded = trained._replace(params=params), None
    if reduction.mean_by:
      weights = trained.weights(reduction.mean_by)
      sums = add_to_one(sums, params, weights, of_all.starts)
    if reduction.fold is not None:
      more = () if of_all.known is None else (of_all.known,)
      folded, sums = reduction.fold(trained, start, sums, *more)
    kept = params if reduction.keep else None
    trained = trained._replace(
      params=None, folded=folded, correction=None, as_trained=None
    )
    return (kept, trained), sums

  def _add_unformed(
    self, done: _Done, of_all: _OfAll, sums: Any, weights: jax.Array
  ) -> Any:
    """Adds local models to the sums of where they started without forming them."""
    choice = done.start.choice
    if choice is None:
      choice = jnp.zeros_like(done.trained.ids)
    return of_all.together.add_to(
      sums, done.params, done.changes, done.trained.finite, weights, choice,
      of_all.starts,
    )  # fmt: skip


def plan(
  local: LocalTraining,
  starts: ClientModels,
  data: FederatedData,
  num_clients: int,
  objective: Objective,
  reduction: Reduction,
) -> Plan:
  """Decides how a cohort of S clients is trained; see `train_cohort`."""
  # Corrections, penalties towards other models and own steps change whole kernels.
  changing = objective.correction, objective.anchor, objective.step
  changes_alone = all(each is None for each in changing)
  together = choose(
    local if changes_alone else local._replace(shared_start='off'),
    starts,
    data,
    num_clients,
    objective.layers,
  )
  unformed = bool(together.kernels and reduction.mean_by) and data.corruption is None
  return Plan(
    local,
    objective,
    reduction,
    together,
    # Few whole models at a time, so that they stay in the cache.
    at_a_time=together.count if unformed else local.clients_per_chunk,
    in_place=reduction.keep and starts.shared is None,
    unformed=unformed,
  )
