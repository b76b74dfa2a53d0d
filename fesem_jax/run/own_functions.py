"""Functions of users that do not do what they seem to once they are compiled."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr

from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.identity import Identity
from fesem_jax.core.local_training import Augment, LocalTraining
from fesem_jax.core.own_code import is_own_function
from fesem_jax.core.types import Model
from fesem_jax.models.networks import check_mixes_nothing
from fesem_jax.run.dependence import DRAWS, follow, repeats_draws
from fesem_jax.run.programs import Programs
from fesem_jax.run.traced import Traced
from fesem_jax.training.trained import SENT
from fesem_jax.utils.display import listed_and_counted
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.notices import warn_once

# What functions have read, the last ones that were run: function -> values and code.
_READ = collections.OrderedDict[Any, Any]()
_MOST_READ = 256


def renew(algorithm: Algorithm, programs: Programs) -> None:
  """Lets go of what was traced if what functions of the user's own read has changed.

  Variables that a function reads from outside, and fields of objects, are constants of
  its trace, which JAX keeps as long as the function.
  """
  local = algorithm.local
  parts = *local.model, local.augmentation, local.lr_schedule, local.local_lr_schedule
  read: dict[Any, Any] = {algorithm.step: (algorithm, local)}
  read |= {part: part for part in parts if callable(part) and is_own_function(part)}
  changed = False
  for function, reads in read.items():
    identity = Identity()
    current = identity.values('', reads), identity.code()
    changed |= _READ.pop(function, current) != current
    _READ[function] = current
  while len(_READ) > _MOST_READ:
    _READ.popitem(last=False)
  if changed:
    programs.clear()
    jax.clear_caches()


def read_by(algorithm: Algorithm) -> list[str]:
  """List of name=value that a round reads from outside; empty if no function is own."""
  identity = Identity()
  values = identity.values('', algorithm.step)
  return values if identity.code() else []


def warn_of_changes(
  algorithm: Algorithm, before: Sequence[str], is_another: Callable[[], bool]
) -> None:
  """Warns if what a round read when it was traced has changed in the rounds since.

  `is_another` traces the round again and tells if it computes something else: an object
  may hold more than the round reads, such as a log.
  """
  pairs = itertools.zip_longest(before, read_by(algorithm), fillvalue='')
  changed = [(a or b).partition('=')[0] for a, b in pairs if a != b]
  if changed and is_another():
    named = listed_and_counted([f'`{name}`' for name in dict.fromkeys(changed)], 3)
    warn_once(
      f'{named}, which functions of the method or its model hold, changed after the '
      'first round, as by a callback or `between`: compiled rounds keep the value of '
      'that one. Keep what changes in the state of the method, or compute it from '
      '`cohort.round`.'
    )


def check(local: LocalTraining, train: FederatedData) -> None:
  """Warns of numbers and starts that are always the same, and of losses of a batch.

  Its functions are traced twice, with two examples. Raises `UserError` if examples
  influence each other in the `apply` of a model of the user's own.
  """
  model = local.model
  if model.made_by is None or is_own_function(model.apply):
    check_mixes_nothing(model, '`apply` of the model', train.example_shape)
  if is_own_function(model.loss):
    _check_loss(model, train)
  if local.augmentation is not None and is_own_function(local.augmentation):
    _check_augmentation(local.augmentation, train.example_shape)
  if is_own_model(model) or is_own_function(model.loss):
    _check_gradients(model, train)
  start = jax.make_jaxpr(model.init)(jax.random.key(0)).jaxpr
  if is_own_model(model):
    _warn_of_one_key('`init` of the model', start)
  if is_own_model(model) and not any(follow(start, [True])[1]):
    warn_once(
      '`init` of the model gives the same parameters for every key: if that is meant, '
      'as of a pretrained model, all seeds start alike, and so do centers that a '
      'method draws, which may then stay alike.'
    )
  for named, function, args in _functions(local, train):
    one, other = (traced_anew(function, *args) for _ in range(2))
    compare_draws(named, one, other)
    _warn_of_one_key(named, one.jaxpr)


def _warn_of_one_key(named: str, traced: Jaxpr) -> None:
  """Says once that numbers which seem independent are the same."""
  if repeats_draws(traced):
    warn_once(
      f'{named} draws several times from one key, so that one array repeats the random '
      'numbers of another; draw each from a key of its own, of jax.random.split.'
    )


def _functions(
  local: LocalTraining, train: FederatedData
) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
  """Name, function and shapes of the arguments of what may be the user's own."""
  model = local.model
  params, x, y, key = _shapes(model, train)
  if model.loss is not model.task.loss:
    outputs = jax.eval_shape(model.apply, params, x)
    yield '`loss` of the model', model.loss, (outputs, y)
  if is_own_model(model):
    yield '`apply` of the model', model.apply, (params, x)
    if model.apply_train is not None:
      weights = [jax.ShapeDtypeStruct((2,), jnp.float32)] if model.statistics else []
      yield '`apply_train` of the model', model.apply_train, (params, x, key, *weights)
  if local.augmentation is not None:
    yield '`augmentation`', local.augmentation, (key, x)
  if local.sends is not None and local.sends.of_client is not None:
    yield f'`{local.sends.named}`', local.sends.of_client, (key, params, params)


def _shapes(model: Model, train: FederatedData) -> tuple[Any, ...]:
  """Shapes of parameters, of two examples and their targets, and of a key."""
  key, shape = jax.eval_shape(lambda: jax.random.key(0)), tuple(train.example_shape)
  of_targets = model.task.target_shape(2, shape, train.num_classes)
  x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
  y = jax.ShapeDtypeStruct(of_targets, model.task.target_dtype)
  return jax.eval_shape(model.init, key), x, y, key


def _check_gradients(model: Model, train: FederatedData) -> None:
  """Warns of parameters that no gradient of the loss reaches, whatever the examples."""

  def loss(params: Any, x: Any, y: Any, key: Any) -> jax.Array:
    outputs: Any = None
    if model.apply_train is None:
      outputs = model.apply(params, x)
    elif model.statistics:
      outputs, _ = model.apply_train(params, x, key, jnp.ones(x.shape[0]))
    else:
      outputs = model.apply_train(params, x, key)
    return jnp.asarray(model.loss(outputs, y)).astype(jnp.float32).sum()

  params, *others = _shapes(model, train)
  traced = jax.make_jaxpr(jax.grad(loss))(params, *others).jaxpr
  reached = follow(traced, [True] * len(traced.invars))[1]
  paths = [
    jax.tree_util.keystr(path, simple=True, separator='/')
    for path, _ in jax.tree.leaves_with_path(params)
  ]
  alone = [path for path, it in zip(paths, reached, strict=True) if not it]
  if alone := [path for path in alone if path not in model.statistics]:
    warn_once(
      f'No gradient of the loss reaches {listed_and_counted(alone, 3)} of the model; '
      'training leaves them as they start: they are unused, or behind something '
      'without a gradient, such as argmax, round, a cast to integers or stop_gradient.'
    )


def is_own_model(model: Model) -> bool:
  """Tells if a model computes what a user has written."""
  origin = model.made_by
  return origin is None or bool(origin.code) or is_own_function(model.apply)


def _check_loss(model: Model, train: FederatedData) -> None:
  """Warns if the loss of an example depends on the others of its batch."""
  shape = tuple(train.example_shape)
  of = [model.task.target_shape(n, shape, train.num_classes) for n in (3, 1)]
  number: Any = np.arange(np.prod(of[0])).reshape(of[0]) % 2
  y = jnp.asarray(number, model.task.target_dtype)
  x = jax.ShapeDtypeStruct((3, *shape), jnp.float32)
  params = jax.eval_shape(model.init, jax.random.key(0))
  outputs = jax.eval_shape(model.apply, params, x)
  outputs = jax.random.uniform(jax.random.key(1), outputs.shape, outputs.dtype)
  of_two, alone = model.loss(outputs, y), model.loss(outputs[:1], y[: of[1][0]])
  if jnp.shape(of_two) != (3,) or jnp.shape(alone) != (1,):
    return  # Training refuses it.
  if not np.allclose(of_two[0], alone[0], rtol=1e-3, atol=1e-3, equal_nan=True):
    warn_once(
      '`loss` of the model is of whole batches: the loss of an example depends on the '
      'others, on those too that only fill up a batch, and evaluation has other '
      'batches than training.'
    )


def _check_augmentation(augmentation: Augment, shape: tuple[int, ...]) -> None:
  """Raises `UserError` unless each example is augmented on its own."""
  # Of so many examples, a random order leaves the first one where it is seldom.
  x = jax.random.normal(jax.random.key(0), (32, *shape))
  keys = jax.random.split(jax.random.key(1), 2)
  made = jax.eval_shape(augmentation, keys[0], x)
  if not hasattr(made, 'shape') or (made.shape, made.dtype) != (x.shape, x.dtype):
    raise UserError(
      f'`augmentation` gives {getattr(made, "dtype", type(made).__name__)} of shape '
      f'{jnp.shape(made)} for float32 examples of shape {x.shape}; it must keep both.'
    )

  @jax.jit
  def first() -> jax.Array:  # One trace, as it may draw on the host.
    batches = jnp.stack([x, x.at[1:].multiply(-1)])

    def of_key(key: jax.Array) -> jax.Array:
      return jax.lax.map(lambda x: augmentation(key, x)[0], batches)

    return jax.lax.map(of_key, keys)

  alone, others = jnp.moveaxis(first(), 1, 0)
  if not np.allclose(alone, others, rtol=1e-3, atol=1e-3, equal_nan=True):
    raise UserError(
      '`augmentation` lets the examples of a batch influence each other, while their '
      'targets stay where they are; change each example on its own.'
    )


def warn_of_own_key(named: str) -> None:
  """Says once that something draws from a key of its own."""
  warn_once(
    f'{named} draws random numbers from a key of its own: they are the same in every '
    'step, round and seed and for every client; unless that is meant, as of fixed '
    'features, draw from a key that is given.'
  )


def warn_of_host(named: str) -> None:
  """Says once that something reads random numbers, or the time, of the host."""
  warn_once(
    f'{named} draws numbers on the host, such as those of np.random: they are drawn '
    'once, when it is compiled, and are the same in every step, round and seed '
    'and for every client; draw them with jax.random from a key that is given.'
  )


def check_draws(named: str, function: Callable[..., Any], *args: Any) -> None:
  """Warns if a function, traced twice, draws numbers that are always the same."""
  compare_draws(named, *(traced_anew(function, *args) for _ in range(2)))


def traced_anew(function: Callable[..., Any], *args: Any) -> Traced:
  """Traces a function, though JAX keeps an earlier trace of it."""
  return Traced.of(lambda *args: function(*args), *args)


def compare_draws(named: str, one: Traced, other: Traced) -> None:
  """Warns if a function draws numbers that are always the same, by two traces of it."""
  if _drawn_alone(one.jaxpr):
    warn_of_own_key(named)
  # Of a callback, a trace does not say which function it calls.
  if 'callback' not in str(one.jaxpr) and not one.same_as(other):
    warn_of_host(named)


def check_key(one: Traced, state: Any, data: Any, cohort: Any, key: Any) -> None:
  """Warns if a round, traced with these arguments, draws alike whatever its key.

  Keys and whole numbers of the state, and the number of the round, may stand for it.
  """
  counts = jnp.integer, jax.dtypes.prng_key
  held = [x.dtype for x in jax.tree.leaves(state)]
  if any(jnp.issubdtype(dtype, kind) for dtype in held for kind in counts):
    return
  numbered = dataclasses.replace(cohort, ids=None)
  parts = (state, False), (data, False), (cohort.ids, False), (numbered, True)
  given = [it for part, it in (*parts, (key, True)) for _ in jax.tree.leaves(part)]
  if DRAWS.search(str(one.jaxpr)) and not any(follow(one.jaxpr, given)[1]):
    warn_once(
      '`step` of the method draws random numbers, such as the order of examples, that '
      'do not depend on the key of the round: they are the same in every round and '
      'seed; train with the `key` that `step` is given.'
    )


def check_means(one: Traced, state: Any, args: Any, dropout_rate: float) -> None:
  """Warns if a round puts models together whoever took part in it.

  It was traced with these arguments, and `state` has the shapes of what it gives.
  Models that each client keeps, one a row, need no weights. Sizes of data, of which
  empty places have none, are enough where no client drops out.
  """
  data, unmarked = args[1], jax.tree.map(lambda _: False, args)
  of_sizes = dataclasses.replace(unmarked[1], offsets=not dropout_rate)
  sized = unmarked[0], of_sizes, *unmarked[2:]

  def depends_on(given: Any, name: str, not_by: str = '') -> list[bool]:
    return follow(one.jaxpr, jax.tree.leaves(given), (name,), not_by)[1]

  of_models = depends_on(unmarked, SENT)
  of_those = depends_on(sized, tree.TOOK_PART, not_by=SENT)
  leaves = jax.tree.leaves(state)
  of_models, of_those = of_models[: len(leaves)], of_those[: len(leaves)]
  for x, mixes, heeds in zip(leaves, of_models, of_those, strict=True):
    if mixes and not heeds and x.shape[:1] != (data.num_clients,):
      warn_once(
        '`step` of the method puts the models of clients together whoever took part: '
        'those of empty places, and of clients that dropped out or failed, count as '
        'they started; weigh clients by `trained.weights(...)`, which is 0 for these.'
      )


def _drawn_alone(jaxpr: Jaxpr) -> bool:
  """Tells if random numbers are drawn that depend on no argument."""
  return follow(jaxpr, [True] * len(jaxpr.invars))[0]
