"""pFedMe against Dinh et al.'s Algorithm 1 in float64, and its limits."""

import numpy as np
import optax

from fesem_jax import algorithms
from tests.support import helpers
from tests.support.methods import (
  federation,
  matrix,
  run,
)

OPTIONS = {
  'pfedme_lambda': 2.0,
  'inner_steps': 3,
  'inner_learning_rate': 0.2,
  'server_learning_rate': 0.8,
}


def test_the_local_optimizer_steps_along_the_envelope():
  # With momentum, the first of several steps is that of SGD, the second is not.
  data = federation()
  for steps in (1, 2):
    finals = [
      run(
        algorithms.build(
          'p_fed_me',
          helpers.local(batch_size=0, steps=steps, optimizer=make, hidden=()),
          **OPTIONS,
        ),
        data,
        rounds=1,
      )[0].params
      for make in (optax.sgd(0.1), optax.sgd(0.1, momentum=0.9))
    ]
    same = np.allclose(*map(matrix, finals), rtol=1e-6, atol=1e-7)
    assert same == (steps == 1)
