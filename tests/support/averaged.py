"""Float64 rounds of methods whose server averages what clients send."""

import functools

import jax
import numpy as np

from tests.support import helpers, reference
from tests.support.methods import SIZES, unflatten


def averaged_rounds(
  local, data, x, cohorts, train, weighting='by_examples', server=None
):
  """A round with each cohort, with the keys of `methods.run`.

  Args:
    local: how clients train.
    data: training split.
    x: [P] the model of the server.
    cohorts: clients of each round.
    train: client i, x, batches -> [P] what it sends, and the mean loss that it met.
      `batches()` are those of its schedule, `batches(epochs=3)` of another one.
    weighting: of the clients in the mean.
    server: x, mean -> the next x; None is the mean itself.

  Returns:
    x after the rounds; loss and number of batches of the last one.
  """
  for number, cohort in enumerate(cohorts, 1):
    key, ids = jax.random.fold_in(jax.random.key(9), number), list(cohort)

    def batches(i, key=key, **changes):
      return helpers.batches(data, local.schedule._replace(**changes), i, key)

    each = [train(i, x, functools.partial(batches, i)) for i in ids]
    sent, losses = zip(*each, strict=True)
    sizes = np.array(SIZES)[ids]
    weights = sizes if weighting == 'by_examples' else None
    mean = np.average(sent, axis=0, weights=weights)
    x = mean if server is None else server(x, mean)
  return x, np.average(losses, weights=sizes), sum(len(batches(i)) for i in ids)


def sgd_like(like, prox=0.0):
  """SGD from the model of the server, as `train` of `averaged_rounds`."""

  def train(i, x, batches):
    del i
    model, loss = reference.local_sgd(unflatten(x, like), batches(), 0.1, prox)
    return reference.flat(model), loss

  return train
