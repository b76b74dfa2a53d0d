"""Rules on local training: the model, the optimizer, functions of the user."""

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fesem_jax.checks.rules import Local, rule
from fesem_jax.core.types import Params

_WITH_SCHEDULE = 'ScaleByScheduleState', 'WrappedScheduleState', 'WeightDecaySchedule'
_DRAWS = re.compile('random_bits|threefry2x32|rng_bit_generator|rng_uniform')


def _params(subject: Local) -> Params:
  """Random parameters of the model, none of which is 0."""
  rng = np.random.default_rng(0)

  def draw(like: Any) -> np.ndarray:
    if len(like.shape) < 2:  # Biases, scales, variances.
      return rng.uniform(0.5, 1.5, like.shape).astype(like.dtype)
    values = rng.standard_normal(like.shape, np.float32)
    return (values / np.sqrt(np.prod(like.shape[:-1]))).astype(like.dtype)

  return jax.tree.map(draw, jax.eval_shape(subject.local.model.init, jax.random.key(0)))


def _examples(subject: Local, second: int = 1) -> np.ndarray:
  """[4, ...] the first example and three more, as the model sees them."""
  rows = np.array([0, second, second + 1, second + 2]) % len(subject.train.y)
  return np.asarray(subject.train.x[rows], np.float32) * np.float32(subject.train.scale)


def _outputs(subject: Local) -> list[np.ndarray]:
  """[4, ...] outputs of the first example, twice with three others."""
  level = {'xla_backend_optimization_level': 0}  # Compiles in half of the time.
  options = level if jax.default_backend() == 'cpu' else {}
  apply = jax.jit(subject.local.model.apply, compiler_options=options)
  params = _params(subject)
  return [np.asarray(apply(params, _examples(subject, i))) for i in (1, 4)]


@rule(
  201,
  bad='local(optax.sgd(optax.cosine_decay_schedule(0.1, 100)))',
  good='local(lr_schedule=optax.cosine_decay_schedule(1.0, 100))',
)
def restarting(subject: Local) -> Iterator[str]:
  """The optimizer has a schedule, which begins anew in every round."""
  shapes = jax.eval_shape(subject.local.model.init, jax.random.key(0))
  state = jax.eval_shape(subject.local.optimizer.init, shapes)
  has_schedule = lambda node: type(node).__name__ in _WITH_SCHEDULE  # noqa: E731
  restarts = any(map(has_schedule, jax.tree.leaves(state, is_leaf=has_schedule)))
  if restarts and not subject.local.keep_optimizer_state:
    yield "the optimizer's schedule restarts in each round: give (local_)lr_schedule"


@rule(202, bad='local(model=model(jax.nn.softmax))', good='local(model=model())')
def probabilities(subject: Local) -> Iterator[str]:
  """The model ends with a softmax, and so does its loss: it learns little."""
  model, class_tasks = subject.local.model, ('classification', 'sequence')
  if model.loss is model.task.loss and model.task.name in class_tasks:
    p = _outputs(subject)[0]
    if p.min() >= 0 and np.allclose(p.sum(axis=-1), 1, atol=1e-3):
      yield 'the model ends with a softmax, and its loss has one: leave out the first'


@rule(
  203, bad='local(model=model(lambda x: x - x.mean()))', good='local(model=model())'
)
def mixed(subject: Local) -> Iterator[str]:
  """The output of an example depends on others, even on those that fill up a batch."""
  one, other = (outputs[0] for outputs in _outputs(subject))
  if not np.allclose(one, other, rtol=1e-3, atol=1e-3, equal_nan=True):
    yield 'apply of the model mixes the examples of a batch: normalize each on its own'


@rule(
  204,
  bad='local(augmentation=lambda key, x: noisy(jax.random.key(0), x))',
  good='local(augmentation=lambda key, x: noisy(key, x))',
)
def same_draws(subject: Local) -> Iterator[str]:
  """A function draws without its key: alike in all steps, rounds and clients."""
  local = subject.local
  functions: dict[str, tuple[Any, tuple[Any, ...]]] = {}
  if local.augmentation is not None:
    functions['augmentation'] = local.augmentation, (_examples(subject),)
  if local.sends is not None and local.sends.transform is not None:
    start = _params(subject)
    # No change at all is sent alike.
    trained = jax.tree.map(lambda x: 2 * x, start)
    functions['sends'] = local.sends.transform, (start, trained)
  for name, (function, args) in functions.items():
    results = [jax.tree.leaves(function(jax.random.key(i), *args)) for i in (0, 0, 1)]
    repeats, keyless = (all(map(np.array_equal, results[0], x)) for x in results[1:])
    traced = str(jax.make_jaxpr(function)(jax.random.key(0), *args)) if keyless else ''
    if not repeats or _DRAWS.search(traced):
      yield f'{name} draws without its key: the same in all steps, rounds and clients'
