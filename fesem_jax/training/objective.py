"""The objective of local training, beyond the mean loss of a client's examples."""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.types import Params
from fesem_jax.training.batch_losses import OwnStep
from fesem_jax.training.local_sgd import Vary


class Correction(NamedTuple):
  """A correction of every gradient of client i: adds `common` - `own`[i].

  Attributes:
    common: [1, ...].
    own: [S, ...].
    applies: [] bool, False adds nothing.
    vary: (step, params, that difference) -> what is added at this local step, counted
      from 0, of one client; None adds the same at every step.
    replaced: whether what `Reduction.fold` keeps of each client takes the place of its
      own part, which it finds in `Trained.correction`.
  """

  common: Params
  own: Params
  applies: jax.Array | bool = True
  vary: Vary | None = None
  replaced: bool = False


class Objective(NamedTuple):
  """Terms that client i minimizes besides the mean loss of its examples.

    L_i(w) + penalty |w - anchor|^2 + <correction, w>

  where L_i is the mean loss of the examples, each times its factor.

  Attributes:
    penalty: [] or [S] float32 factor of the squared distance to the anchor (Eq. 7 of
      Long et al.: lambda; FedProx: mu / 2). None leaves the term out, which is faster
      than 0.
    anchor: the cohort's S models that the penalty pulls to; None is where they start.
    correction: see `Correction`; None adds nothing.
    epochs: [S] int32 local epochs in place of the schedule's, for stragglers. It needs
      a schedule of epochs, not of steps.
    most_epochs: upper bound of `epochs`, to which greater ones are cut. 0 takes the
      greatest of `epochs`; where these are computed within a compiled round, which does
      not know it, clients then use no shared start and cannot be replayed.
    layers: names of the layers that learn; None is all of them.
    factors: [S, N_max] float32 of the examples' losses, in the order of each client's
      rows; the mean is over the number of examples, whatever their factors. None is 1,
      without a cost.
    step: what a client does with a batch, in place of a step along the gradient of all
      of the above; of these, only `epochs` and `factors` then apply.
  """

  penalty: jax.Array | float | None = None
  anchor: ClientModels | None = None
  correction: Correction | None = None
  epochs: jax.Array | None = None
  layers: Sequence[str] | None = None
  factors: jax.Array | None = None
  step: OwnStep | None = None
  most_epochs: int = 0
