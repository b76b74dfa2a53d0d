"""Attacks of bad clients, as values.

  train = fj.attacks.apply(train, 'backdoor(0)+replacement(10)', 0.1)

An attack has `change(x, y, drawn, train)`, which returns other training examples, or
`send(start, params, key)`, a function of one client that returns the model it sends in
place of `params`. Personal layers and models stay as they were trained.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import prng_streams, tree
from fesem_jax.core.federated_data import Attack, FederatedData
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Params
from fesem_jax.data import expressions
from fesem_jax.tasks import CLASSIFICATION
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import check

Array = np.ndarray
Examples = tuple[Array, Array]  # x [N, ...], y [N]


@dataclasses.dataclass(frozen=True)
class LabelFlip:
  """Trains on the labels in reverse order, of those that have training examples."""

  def change(self, x: Array, y: Array, drawn: Array, train: FederatedData) -> Examples:
    labels = np.unique(np.asarray(train.y))
    return x, labels[::-1][np.searchsorted(labels, y)].astype(y.dtype)


@dataclasses.dataclass(frozen=True)
class Backdoor:
  """Marks a share of the examples and labels them `target` (Gu et al. 2017).

  The mark is the largest value of the split in the corner of an example; see `mask`.
  """

  target: ranges.Index
  share: ranges.PositiveFraction = 0.5

  def __post_init__(self):
    ranges.check_arguments(Backdoor, vars(self))

  def change(self, x: Array, y: Array, drawn: Array, train: FederatedData) -> Examples:
    classes = train.num_classes
    check(self.target < classes, f'attack: {self} needs a class in 0..{classes - 1}')
    marked, corner = drawn < self.share, mask(x.shape[1:])
    y = np.where(marked, self.target, y).astype(y.dtype)
    marked = marked.reshape(-1, *(1 for _ in corner.shape)) & corner
    return np.where(marked, np.asarray(train.x).max(), x), y


@dataclasses.dataclass(frozen=True)
class Replacement:
  """Sends s + scale (w - s), for the model w trained from s (Bagdasaryan et al. 2020).

  A `scale` of S replaces the mean of S clients.
  """

  scale: float = -1.0

  def __post_init__(self):
    ranges.check_arguments(Replacement, vars(self))

  def send(self, start: Params, params: Params, key: jax.Array) -> Params:
    return jax.tree.map(lambda s, w: s + self.scale * (w - s), start, params)


@dataclasses.dataclass(frozen=True)
class Noise:
  """Sends s + |w - s| z / sqrt(P), with standard normal z of each round and client."""

  def send(self, start: Params, params: Params, key: jax.Array) -> Params:
    change = jax.tree.map(jnp.subtract, params, start)
    zeros = tree.expand(tree.zeros_like(change))
    square = tree.row_distances(tree.expand(change), zeros)[0]
    scale = jnp.sqrt(square) / math.sqrt(sum(x.size for x in jax.tree.leaves(change)))
    drawn = tree.normal_like(prng_streams.fold(key, prng_streams.NOISE), change)
    return jax.tree.map(lambda s, z: s + scale * z, start, drawn)


def sign_flip() -> Replacement:
  """Sends s - (w - s), for the model w trained from s."""
  return Replacement(-1.0)


KINDS: dict[str, Callable[..., Any]] = {
  'label_flip': LabelFlip,
  'backdoor': Backdoor,
  'sign_flip': sign_flip,
  'noise': Noise,
  'replacement': Replacement,
}


def parse(text: str) -> tuple[Any, ...]:
  """The attacks that an expression such as 'backdoor(0)+replacement(10)' names."""
  return tuple(expressions.build(text, KINDS, 'attack')) if text else ()


@ranges.checked
def apply(
  train: FederatedData,
  attack: str | Sequence[Any],
  attack_fraction: ranges.Share,
  seed: ranges.Seed = 0,
) -> FederatedData:
  """The training split, on the host, with a fraction of its clients bad.

  A larger fraction includes the bad clients of a smaller one. `attack` is a list of
  attacks or an expression, '' for none; apply it after `hold_out`. Raises `UserError`
  unless both bad and honest clients remain.
  """
  attacks = parse(attack) if isinstance(attack, str) else tuple(attack)
  if not attacks:
    check(not attack_fraction, 'attack_fraction: needs attack, e.g. attack=label_flip')
    return train
  count, clients = round(attack_fraction * train.num_clients), train.num_clients
  check(0 < count < clients, f'attack_fraction: makes {count} of {clients} clients bad')
  by_id = np.argsort(np.asarray(train.client_ids), kind='stable')
  order = prng_streams.host_rng(seed, prng_streams.CORRUPT).permutation(clients)
  bad = np.zeros(clients, bool)
  bad[by_id[order[:count]]] = True
  changes = [attack.change for attack in attacks if hasattr(attack, 'change')]
  rows = np.repeat(bad, np.diff(np.asarray(train.offsets)))
  drawn = prng_streams.host_rng(seed, prng_streams.BACKDOOR).random(len(rows))[rows]
  fits = train.task == CLASSIFICATION.name or not changes
  check(fits, f'attack: needs classes; the data are for {train.task}')
  x, y = np.asarray(train.x), np.array(train.y)
  new_x, new_y = before = x[rows], y[rows]
  for change in changes:
    new_x, new_y = change(new_x, new_y, drawn, train)
  y[rows] = new_y
  if new_x is not before[0]:
    x = np.array(x)
    x[rows] = new_x
  return dataclasses.replace(train, x=x, y=y, attack=Attack(bad, attacks))


def mask(shape: tuple[int, ...], width: int | None = None) -> Array:
  """Bool, True in the corner of an example of a shape; `width` flattens it."""
  sides = shape[:2]
  size = max(len(sides), shape[0] // 8)
  patch = np.zeros(shape, bool)
  patch[tuple(slice(max(0, side - size), side) for side in sides)] = True
  return patch if width is None else np.pad(patch.ravel(), (0, width - patch.size))


def backdoor_of(train: FederatedData) -> Backdoor | None:
  """The backdoor of a split's bad clients, if they have one."""
  attacks = () if train.attack is None else train.attack.kinds
  return next((kind for kind in attacks if isinstance(kind, Backdoor)), None)


def honest(train: FederatedData) -> Array | None:
  """[M] bool, clients that are not bad; None where no client is to be bad."""
  return None if train.attack is None else ~np.asarray(train.attack.bad)


def check_models_only(
  train: FederatedData, local: LocalTraining, method: str, sent: str
) -> None:
  """Raises `UserError` if an attack or `local.sends` changes what `method` cannot."""
  local.check_no_sends(method, sent)
  lies = train.attack is not None and train.attack.poisons_models
  check(not lies, f'attack: {method} sends {sent}; choose attack=label_flip')
