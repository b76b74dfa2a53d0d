"""What wrappers hand on to the method within."""

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax import algorithms
from fesem_jax.algorithms.common import wrapped
from fesem_jax.algorithms.wrappers.reclustering import ReclusteringState
from tests.support import helpers
from tests.support.methods import federation


def test_a_wrapped_method_keeps_its_other_functions():
  data = federation()
  method = algorithms.build('fesem', helpers.local(hidden=()), num_clusters=2)
  decided = method._replace(
    between=lambda state, info: (state._replace(rounds=state.rounds + 10), 'decided')
  )
  own = jax.eval_shape(method.init, jax.random.key(0), data)
  own = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), own)
  state, step = ReclusteringState(own, None), object()
  made = wrapped.wrap(decided, step)
  assert made.step is step
  assert made.deployed(state, data).choice is own.assignment
  ones = jax.tree.map(jnp.ones_like, own.centers)
  moved = made.with_centers(state, ones, jnp.ones(2, bool))
  np.testing.assert_array_equal(moved.method.centers['logits']['bias'], 1)
  after, info = made.between(state, None)
  assert (int(after.method.rounds), info) == (10, 'decided')
  watched = method._replace(train=lambda local, state, *args: state)
  assert wrapped.wrap(watched, step).train(method.local, state, *[None] * 4) is own
  none = wrapped.wrap(method._replace(train=None), step)
  assert none.train is none.between is None
  assert wrapped.wrap(method, step, deployed='own').deployed == 'own'
