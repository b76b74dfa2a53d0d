"""Processing of the models of a cohort: kept, or reduced chunk by chunk.

A method that needs only sums of the local models adds each chunk's as soon as it has
trained, while it is in the cache; then no array of S models exists.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fesem_jax.core.sums import add_to_one, no_sums
from fesem_jax.core.types import Params
from fesem_jax.training.one_client import Client, LocalModel

# (a chunk's Trained, its starts, sums) -> tree of [C, ...] to keep, sums.
Fold = Callable[..., tuple[Any, Any]]


class Reduction(NamedTuple):
  """The reduction of what the clients of a cohort send.

  Attributes:
    fold: called with a chunk's `Trained`, its starts, whose `shared` is whole, and
      sums; returns a tree of [C, ...] to keep, which must not depend on the sums, and
      the sums with the chunk's added. `Trained.ids` says whose the chunk is.
    sums: what `fold` adds to, all zeros.
    known: arrays, whole on every device, that `fold` gets as a fourth argument; None
      if it takes three.
    keep: whether the local models are returned too.
    into: [S, ...] old models whose memory they may take.
    sent: what clients of `train_cohort` send, about which bad ones may lie: the layers
      that they received ('shared'), models of their own too ('own'), or 'nothing'.
    mean_by: the weighting, if `fold` does no more than that of `mean_of_models`: models
      from a shared start are then added up without being formed.
    noised: whether the caller adds the server's noise for privacy, by `privacy.means`,
      to what it makes of models that are kept.
  """

  fold: Fold | None = None
  sums: Any = None
  known: Any = None
  keep: bool = True
  into: Params | None = None
  sent: str = 'shared'
  mean_by: str = ''
  noised: bool = False

  def sent_by(
    self, client: Client, model: LocalModel, layers: Sequence[str] | None = None
  ) -> Params:
    """The model that a client sends, of which `layers` learned; see `Client.send`."""
    received = {'shared': client.received, 'own': client.start, 'nothing': None}
    return client.send(model, received[self.sent], layers)


def mean_of_models(weighting: str, origin: Params) -> Reduction:
  """Adds up models about `origin` [1, ...], where they start; keeps none of them.

  For `weighting`, see `Trained.weights`.
  """

  def fold(trained, starts, total):
    weights = trained.weights(weighting)
    return None, add_to_one(total, trained.params, weights, starts.shared)

  return Reduction(fold, no_sums(origin), keep=False, mean_by=weighting)
