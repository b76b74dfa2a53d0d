"""FeSEM's penalty, E-step and M-step as values, and their effect on a chunk."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.core import tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.sums import mean_of
from fesem_jax.core.types import Cohort, Params
from fesem_jax.server import em
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.comparison import ModelComparison
from fesem_jax.server.optimizers import ServerOptimizer
from fesem_jax.server.robust import Aggregate
from fesem_jax.training.trained import Reduction, Trained


@dataclasses.dataclass(frozen=True)
class Penalty:
  """lambda |W - W~(r_i)|^2, added to each client's loss (Eq. 7).

  The paper minimizes alpha_i L_i + (lambda / m) Dist: divided by alpha_i, a client
  minimizes L_i + lambda / (m alpha_i) Dist ('paper'). 'uniform' is lambda for all.
  """

  prox_lambda: float = 0.01
  weighting: str = 'uniform'

  def of(self, data: FederatedData, cohort: Cohort) -> jax.Array | float | None:
    """[] or [S] float32 factor of each client's squared distance; None if it is 0."""
    if self.prox_lambda == 0:
      return None
    if self.weighting == 'uniform':
      return variable(self.prox_lambda)
    sizes = data.sizes().astype(jnp.float32)  # 1 / (m alpha_i) = mean n / n_i
    mean_size = sizes.sum() / (sizes > 0).sum()
    return (
      variable(self.prox_lambda) * mean_size / jnp.maximum(data.sizes(cohort.ids), 1)
    )


@dataclasses.dataclass(frozen=True)
class MStep:
  """The new value of a center: the mean of its clients (Eq. 9).

  Attributes:
    weighting: of clients in Eq. 6 and 9.
    aggregation: in place of the mean.
    server_optimizer: steps along the mean change of the clients (FedOpt).
    track_objective: whether rounds report Eq. 6 after each step.
  """

  weighting: str = 'uniform'
  aggregation: Aggregate | None = None
  server_optimizer: ServerOptimizer = None
  track_objective: bool = False

  def mask_batch_stats(self, statistics: Sequence[str]) -> 'MStep':
    """The same, where statistics of batches take their mean as it is."""
    optimizer = server_optimizers.mask_batch_stats(self.server_optimizer, statistics)
    return dataclasses.replace(self, server_optimizer=optimizer)


class Known(NamedTuple):
  """The centers as the E-step needs them, made once a round."""

  centers: Any  # see `ModelComparison.known`
  # [] bool, whether clients keep the clusters that they start from; None if never.
  keep_clusters: jax.Array | None


class Assigned(NamedTuple):
  """The E-step's outcome for a chunk."""

  cluster: jax.Array  # [C] int32 new cluster of each client
  # [C] float32 squared distance of all parameters to that cluster's center before the
  # M-step.
  distance: jax.Array
  models: Params  # [C, ...] as they are averaged


@dataclasses.dataclass(frozen=True, eq=False)
class EMSteps:
  """The E-step and the M-step of a run."""

  m_step: MStep
  compare: ModelComparison  # what of the models is compared

  def reduction(self, centers: Params, keep_clusters: jax.Array | None) -> Reduction:
    """The sums of a round, and the centers as the E-step needs them."""
    return Reduction(
      sums=em.Sums.zeros(centers, self.m_step.track_objective),
      known=Known(self.compare.known(self.compare.part(centers)), keep_clusters),
    )

  def nearest(self, chunk: Trained, starts: ClientModels, known: Known) -> Assigned:
    """E-step (Eq. 8): every client goes to the center nearest to its model."""
    centers, start = starts.shared, starts.choice
    assert start is not None
    nearest, distance, models = self.compare.nearest(chunk.params, known.centers)
    takes, keep, align = chunk.took_part(), known.keep_clusters, self.compare.align
    new = jnp.where(takes if keep is None else takes & ~keep, nearest, start)
    if align is not None and keep is not None:
      # Units in the order of the center that takes the model, where it is kept.
      models = jax.lax.cond(
        keep,
        lambda: align(chunk.params, tree.take(centers, start), None),
        lambda: models,
      )
    if self.compare.partial or keep is not None:  # Eq. 6: of all parameters.
      distance = tree.row_distances(models, tree.take(centers, new))
    return Assigned(new, distance, models)

  def add(
    self,
    sums: em.Sums,
    chunk: Trained,
    starts: ClientModels,
    assigned: Assigned,
  ) -> em.Sums:
    """Adds a chunk to what the M-step and Eq. 6 need of it."""
    centers, start, weighting = starts.shared, starts.choice, self.m_step.weighting
    assert start is not None
    averaged = chunk._replace(params=assigned.models)
    sums = sums.add_started(averaged, start, weighting, centers)
    return sums.add(averaged, assigned.cluster, assigned.distance, weighting, centers)

  def centers(
    self, trained: Trained, cluster: jax.Array, old: Params, server: Any, mesh: Any
  ) -> tuple[Params, Any]:
    """M-step (Eq. 9): new centers [K, ...], and the state of the server optimizer."""
    aggregation, clients = self.m_step.aggregation, trained.sums.clients
    if aggregation is None:
      means = mean_of(clients, old)
    else:
      aligned = trained.folded[1]
      stack = trained.params if aligned is None else aligned
      means = aggregation(stack, cluster, trained.took_part(), old, mesh)
    optimizer = self.m_step.server_optimizer
    if optimizer is None:
      return means, server
    return server_optimizers.move(optimizer, server, old, means, clients.weight > 0)
