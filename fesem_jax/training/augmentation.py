"""Augmentation of images inside a local step: crops and flips, as in torchvision."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.tasks.targets import has_channels_first
from fesem_jax.utils.errors import check

FORMS = 'crop:PADDING and flip'


class Crop(NamedTuple):
  """A window of the image's own size, out of the image with zeros around it."""

  padding: int  # zeros on each side

  def draw(self, key: jax.Array, shape: Sequence[int]) -> jax.Array:
    """[2] int32: the window's first row and column, each in 0..2 padding."""
    return jax.random.randint(key, (2,), 0, 2 * self.padding + 1)

  def changed(self, image: jax.Array, first: jax.Array) -> jax.Array:
    widths = [(self.padding, self.padding)] * 2 + [(0, 0)] * (image.ndim - 2)
    starts = [*first, *[0] * (image.ndim - 2)]
    return jax.lax.dynamic_slice(jnp.pad(image, widths), starts, image.shape)


class Flip(NamedTuple):
  """Left and right change places in half of the images."""

  def draw(self, key: jax.Array, shape: Sequence[int]) -> jax.Array:
    return jax.random.bernoulli(key)

  def changed(self, image: jax.Array, flips: jax.Array) -> jax.Array:
    return jnp.where(flips, image[:, ::-1], image)


Change = Crop | Flip


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """A sequence of random changes of images, as `LocalTraining.augmentation`.

  Attributes:
    changes: the changes, in order.
  """

  changes: tuple[Change, ...]

  def __call__(self, key: jax.Array, x: jax.Array) -> jax.Array:
    """Changes each image of x [B, H, W] or [B, H, W, C]; `key` is a local step's."""

    def one(slot: jax.Array, image: jax.Array) -> jax.Array:
      keys = jax.random.split(jax.random.fold_in(key, slot), len(self.changes))
      for change_key, change in zip(keys, self.changes, strict=True):
        image = change.changed(image, change.draw(change_key, image.shape))
      return image

    return jax.vmap(one)(jnp.arange(x.shape[0], dtype=jnp.int32), x)


_MAKE: dict[str, Callable[..., Any]] = {'crop': Crop, 'flip': Flip}


def augmentation(text: str, example_shape: Sequence[int]) -> Augmentation | None:
  """The augmentation that a text such as 'crop:4,flip' names; None if empty.

  Args:
    text: changes in order, each at most once.
    example_shape: [H, W] or [H, W, C].

  Raises:
    UserError: on an unknown or repeated change, a number out of range, or no images.
  """
  if not text:
    return None
  shape = tuple(example_shape)
  check(len(shape) in (2, 3), f'augment: needs images; examples have shape {shape}')
  last = not has_channels_first(shape)
  check(last, f'augment: channels must be the last axis; examples have shape {shape}')
  steps: dict[str, Any] = {}
  for part in text.split(','):
    name, colon, number = part.partition(':')
    numbered = name == 'crop'
    fits = number.isdecimal() and len(number) < 6 if numbered else not colon
    fits &= name in _MAKE and name not in steps
    check(fits, f'augment: must be {FORMS}, each at most once; got {part!r:.20}')
    small = not numbered or 0 < int(number) <= min(shape[:2])
    check(
      small, f"augment: {part} must be from 1 to {min(shape[:2])}, the images' side"
    )
    steps[name] = _MAKE[name](*[int(number)] if numbered else [])
  return Augmentation(tuple(steps.values()))
