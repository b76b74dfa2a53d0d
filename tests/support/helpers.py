"""Small federations and builders that the tests share."""

import functools
import itertools
import re
import socket

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fesem_jax import models
from fesem_jax.core import sharding
from fesem_jax.core.batching import Schedule, batch_width
from fesem_jax.core.client_info import ClientInfo
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.traced_functions import called_by
from fesem_jax.core.types import Cohort
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction, Trained

SHAPE, CLASSES = (6,), 3


@functools.cache
def model_of(*description):
  """A model that tests share, whose start is one program and not many."""
  model = models.build(*description)
  return model._replace(init=jax.jit(model.init))


def federation(sizes, seed=0, groups=None, shape=SHAPE, classes=CLASSES):
  """Gaussian features whose labels depend on the client's group."""
  rng = np.random.default_rng(seed)
  sizes = np.asarray(sizes)
  groups = np.zeros(len(sizes), int) if groups is None else np.asarray(groups)
  x = rng.normal(size=(sizes.sum(), *shape)).astype(np.float32)
  teachers = rng.normal(size=(groups.max() + 1, int(np.prod(shape)), classes))
  group_of_row = np.repeat(groups, sizes)
  logits = np.einsum('tp,tpl->tl', x.reshape(len(x), -1), teachers[group_of_row])
  info = ClientInfo(np.array([f'c{i}' for i in range(len(sizes))]), groups)
  return FederatedData.from_arrays(
    x, logits.argmax(axis=1), sizes, num_classes=classes, info=info
  )


def local(
  batch_size=4,
  epochs=1,
  steps=0,
  rate=0.1,
  chunk=2,
  devices=1,
  hidden=(5,),
  optimizer=None,
  shape=SHAPE,
  classes=CLASSES,
  model='mlp',
):
  """A `LocalTraining` of a tiny model."""
  return LocalTraining(
    model_of(model, tuple(shape), classes, tuple(hidden)),
    optax.sgd(rate) if optimizer is None else optimizer,
    Schedule(batch_size, epochs, steps),
    chunk,
    sharding.client_mesh(devices),
  )


def with_precise_init(local):
  """The same local training, whose model's start says the precision of its products.

  Flax runs the module on zeros, which no compiler leaves in a program.
  """
  model = local.model

  def init(key):
    with jax.default_matmul_precision('highest'):
      return model.init(key)

  return local._replace(model=model._replace(init=init))


def first_model(local, seed=0):
  """A random model."""
  return local.model.init(jax.random.key(seed))


def first_models(local, count, seed=0):
  """A stack of random models."""
  keys = jax.random.split(jax.random.key(seed), count)
  return jax.vmap(local.model.init)(keys)


def everyone(data):
  """The cohort of all clients."""
  return Cohort(np.arange(data.num_clients, dtype=np.int32), everyone=True)


def order_of(key, epoch, size):
  """The order of a client's examples in an epoch; `key` is the client's of the round.

  The swap-or-not shuffle as its paper has it, one row at a time, in Python's integers.
  """
  rounds, most = 16, 2**32

  def mixed(x):
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
      x = (x ^ (x >> shift)) * factor % most
    return x ^ (x >> 16)

  first, second = np.asarray(jax.random.bits(key, (2,), np.uint32)).tolist()
  counters = range((rounds + 1) * epoch, (rounds + 1) * (epoch + 1))
  keys = [mixed(mixed((i + first) % most) ^ second) for i in counters]
  order = []
  for row in range(size):
    row = (row + keys[rounds]) % size
    for factor, more in itertools.pairwise(keys):
      partner = (factor - row) % size
      bits = (max(row, partner) * factor + more) % most
      row = partner if bits >> 31 else row
    order.append(row)
  return np.array(order)


def batches(data, schedule, client, key):
  """The batches that client number `client` sees, from the specified keys.

  Spells out (seed, round, client id, epoch) -> order of examples.
  """
  x, y = data.client(client)
  if len(y) == 0:
    return []
  key = jax.random.fold_in(key, int(data.client_ids[client]))
  width = batch_width(schedule, data.max_examples)
  per_epoch = -(-len(y) // width)
  total = schedule.steps or schedule.epochs * per_epoch
  out = []
  for epoch in range(-(-total // per_epoch)):
    is_whole = width >= data.max_examples
    order = np.arange(len(y)) if is_whole else order_of(key, epoch, len(y))
    parts = [order[i : i + width] for i in range(0, len(y), width)]
    out += [(x[rows], y[rows]) for rows in parts]
  return out[:total]


def num_aliased(program):
  """How many results of a compiled program take over an argument's memory."""
  head = program.as_text().partition('\n')[0]
  aliases = re.search(r'input_output_alias=\{(.*?)\}(, \w+=|$)', head)
  return 0 if aliases is None else len(re.findall(r'\(\d+,', aliases[1]))


def asks_host(program):
  """Whether a compiled program calls back or sends anything to the host."""
  words = ('callback', 'outfeed', 'infeed', 'send', 'recv')
  return any(word in program.as_text() for word in words)


def product_precisions(program):
  """Precisions of the factors of each product in a jaxpr, with all that it calls."""
  precisions = []
  for equation in program.eqns:
    if equation.primitive.name in ('dot_general', 'conv_general_dilated'):
      precisions.append(equation.params['precision'])
    for inner, _ in called_by(equation):
      precisions += product_precisions(inner)
  return precisions


def trained(params, sizes=None, **changes):
  """`Trained` of clients 0, 1, ... whose updates all count, after one step.

  Args:
    params: [S, ...] their models.
    sizes: of their data; None is one example each.
    **changes: other fields.
  """
  count = len(jax.tree.leaves(params)[0])
  alike = Trained(
    ids=jnp.arange(count), params=params, loss=jnp.zeros(count),
    sizes=jnp.ones(count, jnp.int32) if sizes is None else jnp.asarray(sizes),
    finite=jnp.ones(count, bool), arrived=jnp.ones(count, bool),
    steps=jnp.ones(count, jnp.int32),
  )  # fmt: skip
  return alike._replace(**changes)


def blobs(num_clients=60, k=3, size=20, spread=1.0, seed=0):
  """[M, P] float32 points about k centers, and whose center each is."""
  rng = np.random.default_rng(seed)
  truth = np.arange(num_clients) % k
  points = 4 * rng.normal(size=(k, size))[truth] + spread * rng.normal(
    size=(num_clients, size)
  )
  return points.astype(np.float32), truth


def as_stack(points):
  """Points [M, P] as a stack of two layers of different rank."""
  return jax.device_put({'a': points[:, :8].reshape(-1, 2, 4), 'b': points[:, 8:]})


def two_layers(rng, count, size=4):
  """A stack of random models with two layers of different rank."""
  return {
    'a': jnp.asarray(rng.normal(size=(count, 3, 2)), jnp.float32),
    'b': jnp.asarray(rng.normal(size=(count, size)), jnp.float32),
  }


def flat(tree):
  """The arrays of a tree by their paths."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


def free_address():
  """A HOST:PORT of this machine that nothing listens at."""
  with socket.create_server(('127.0.0.1', 0)) as listener:
    return f'127.0.0.1:{listener.getsockname()[1]}'


def trained_cohort(local, starts, data, cohort, key, **fields):
  """`train_cohort` with a `Reduction` of those of the fields that it has."""
  reduced = {name: x for name, x in fields.items() if name in Reduction._fields}
  rest = {name: x for name, x in fields.items() if name not in reduced}
  reduction = Reduction(**reduced)
  return train_cohort(local, starts, data, cohort, key, reduction, **rest)
