"""The distance penalty of FeSEM's local training (Eq. 7)."""

import dataclasses

import jax
import jax.numpy as jnp

from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.types import Cohort
from fesem_jax.utils.errors import check_at_least, check_choice


@dataclasses.dataclass(frozen=True)
class Penalty:
  """lambda |W - W~(r_i)|^2, added to each client's loss.

  The paper minimizes alpha_i L_i + (lambda / m) Dist (Eq. 7). Divided by alpha_i, the
  client's own SGD is on L_i + lambda / (m alpha_i) Dist, where Dist is the squared L2
  distance, without a half: its gradient is 2 (w - c).

  Attributes:
    prox_lambda: lambda; the paper does not state its value.
    weighting: 'uniform' uses lambda for every client, 'paper' lambda / (m alpha_i).

  Raises:
    UserError: on a negative lambda or an unknown weighting.
  """

  prox_lambda: float = 0.01
  weighting: str = 'uniform'

  def __post_init__(self):
    check_choice('prox_weighting', self.weighting, ('uniform', 'paper'))
    check_at_least(0, prox_lambda=self.prox_lambda)

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
