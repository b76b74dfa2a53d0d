"""Processing of the models of a cohort: kept, or reduced chunk by chunk.

A method that needs only sums of the local models adds each chunk's as soon as it has
trained, while it is in the cache; then no array of S models exists.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fesem_jax.core.types import Params

# (a chunk's Trained, its starts, sums) -> tree of [C, ...] to keep, sums.
Fold = Callable[..., tuple[Any, Any]]


class Reduction(NamedTuple):
  """The reduction of the local models of a cohort.

  Attributes:
    fold: called with a chunk's `Trained`, its starts, whose `shared` is whole, and
      sums; returns a tree of [C, ...] to keep, which must not depend on the sums, and
      the sums with the chunk's added. `Trained.ids` says whose the chunk is.
    sums: what `fold` adds to, all zeros.
    known: arrays, whole on every device, that `fold` gets as a fourth argument; None
      if it takes three.
    mean_by: a weighting, in place of `fold`: adds up the models of clients that all
      start from one, less that one, in `Trained.sums`, a `sums.ClusterSums`.
    keep: whether the local models are returned too.
    into: [S, ...] old models whose memory they may take.
    sent: what clients send, about which bad ones may lie (`sent_models.as_sent`): the
      layers that they received ('shared'), models of their own too ('own'), or
      'nothing'.
  """

  fold: Fold | None = None
  sums: Any = None
  known: Any = None
  mean_by: str = ''
  keep: bool = True
  into: Params | None = None
  sent: str = 'shared'


def mean_of_models(weighting: str) -> Reduction:
  """Adds up the models of clients that all start from one; keeps none of them.

  For `weighting`, see `Trained.weights`.
  """
  return Reduction(mean_by=weighting, keep=False)
