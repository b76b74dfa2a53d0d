"""Convolution and pooling whose gradients stay fast inside loops and over clients.

See docs/design/kernels.md. Gradients are in the forward form (NHWC, HWIO) on a CPU;
patches times kernel on a GPU, where kernels differ by client; grouped convolutions on a
TPU.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fesem_jax.core import platforms

if TYPE_CHECKING:
  from flax import nnx

Padding = Literal['SAME', 'VALID'] | tuple[tuple[int, int], tuple[int, int]]
_LAYOUT = ('NHWC', 'HWIO', 'NHWC')


def conv2d(
  x: jax.Array,
  kernel: jax.Array,
  *,
  strides: tuple[int, int] = (1, 1),
  padding: Padding = 'SAME',
  method: str | None = None,
) -> jax.Array:
  """2-D convolution, equal to `lax.conv_general_dilated` up to rounding.

  [B, H', W', O] of x [B, H, W, I] and a kernel [h, w, I, O]. `padding` may be the
  pixels before and after each axis. `method` is 'forward_form', 'patches' or 'grouped'
  (XLA's); None takes the fastest on the platform.
  """
  if isinstance(padding, str):
    pads = jax.lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    (top, bottom), (left, right) = pads
    padding = (int(top), int(bottom)), (int(left), int(right))
  strides = (strides[0], strides[1])
  if method is None:
    return _by_platform(x, kernel, strides, padding)
  by_method: dict[str, Callable[..., jax.Array]] = {
    'forward_form': _conv,
    'patches': _patches_times_kernel,
    'grouped': _forward,
  }
  return by_method[method](x, kernel, strides, padding)


def general_dilated(
  x: jax.Array,
  kernel: jax.Array,
  window_strides: Sequence[int],
  padding: Any,
  lhs_dilation: Sequence[int] | None = None,
  rhs_dilation: Sequence[int] | None = None,
  dimension_numbers: Any = None,
  feature_group_count: int = 1,
  **kwargs: Any,
) -> jax.Array:
  """`conv_general_dilated` of Flax's `Conv`; plain float32 ones are `conv2d`."""
  plain = (
    x.ndim == 4
    and x.dtype == kernel.dtype == jnp.float32
    and set(lhs_dilation or [1]) | set(rhs_dilation or [1]) == {1}
    and feature_group_count == 1
    and not any(kwargs.values())  # A precision or type of the layer's own.
  )
  if not plain:
    return jax.lax.conv_general_dilated(
      x, kernel, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
      feature_group_count, **kwargs,
    )  # fmt: skip
  if not isinstance(padding, str):
    padding = tuple(map(tuple, padding))
  strides = window_strides[0], window_strides[1]
  return conv2d(x, kernel, strides=strides, padding=padding)


def for_linen() -> Any:
  """Within it, the convolutions of Linen modules are those of `general_dilated`."""

  def intercept(
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
  ) -> Any:
    layer = context.module
    if type(layer) is nn.Conv and not (
      layer.conv_general_dilated or layer.conv_general_dilated_cls
    ):  # The layer is of this call alone.
      object.__setattr__(layer, 'conv_general_dilated', general_dilated)
    return call(*args, **kwargs)

  return nn.intercept_methods(intercept)


def for_nnx(module: 'nnx.Module') -> None:
  """Makes the convolutions of an NNX module those of `general_dilated`."""
  from flax import nnx  # Slow to import.

  for _, layer in nnx.iter_modules(module):
    convolve = type(layer) is nnx.Conv and layer.conv_general_dilated
    if convolve is jax.lax.conv_general_dilated:
      layer.conv_general_dilated = general_dilated  # type: ignore[attr-defined]


def _patches_times_kernel(x, kernel, strides, padding):
  height, width, inputs, outputs = kernel.shape
  x = jax.lax.pad(
    x, jnp.zeros((), x.dtype), [(0, 0, 0), *((*p, 0) for p in padding), (0, 0, 0)]
  )
  # Columns and then rows of a window, each few slices of many channels.
  for axis, window, stride in ((2, width, strides[1]), (1, height, strides[0])):
    last = (x.shape[axis] - window) // stride * stride
    slices = [
      jax.lax.slice_in_dim(x, i, i + last + 1, stride, axis) for i in range(window)
    ]
    x = jnp.concatenate(slices, axis=-1)
  return x @ kernel.reshape(height * width * inputs, outputs)  # [B, H', W', O]


def _forward(
  x, kernel, strides, padding, kernel_dilation=(1, 1), x_dilation=(1, 1), precision=None
):
  return jax.lax.conv_general_dilated(
    x, kernel, strides, padding, x_dilation, kernel_dilation, _LAYOUT,
    precision=precision,
  )  # fmt: skip


def _one_by_one(x, kernel, *args, **kwargs):
  """`_forward`, but clients that are mapped over take turns."""
  # Where they are mapped over from outside of a loop, the function is traced again
  # after the precision that is asked for here has ended.
  kwargs['precision'] = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]

  @jax.custom_batching.sequential_vmap
  def convolve(x, kernel):
    return _forward(x, kernel, *args, **kwargs)

  return convolve(x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _conv(x, kernel, strides, padding):
  return _one_by_one(x, kernel, strides, padding)


def _conv_fwd(x, kernel, strides, padding):
  return _one_by_one(x, kernel, strides, padding), (x, kernel)


def _conv_bwd(strides, padding, residuals, dy):
  x, kernel = residuals
  dx_padding, dk_padding = [], []
  for axis in (0, 1):
    size, window = x.shape[1 + axis], kernel.shape[axis]
    before = padding[axis][0]
    spread = (dy.shape[1 + axis] - 1) * strides[axis] + 1
    dx_before = window - 1 - before
    dx_padding.append((dx_before, size + window - 1 - spread - dx_before))
    # Rows at the end that no window reached must not lengthen the kernel.
    dk_padding.append((before, window - 1 + spread - size - before))
  # Input gradient: the kernel flipped in space, inputs and outputs swapped.
  flipped = kernel[::-1, ::-1].swapaxes(2, 3)
  dx = _one_by_one(dy, flipped, (1, 1), dx_padding, x_dilation=strides)
  # Kernel gradient: the batch plays the part of the channels that are summed.
  dk = _one_by_one(
    x.transpose(3, 1, 2, 0),
    dy.transpose(1, 2, 0, 3),
    (1, 1),
    dk_padding,
    kernel_dilation=strides,
  )
  return dx, dk.transpose(1, 2, 0, 3)


_conv.defvjp(_conv_fwd, _conv_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _by_platform(x, kernel, strides, padding):
  def one_by_one(x, kernel):
    return _one_by_one(x, kernel, strides, padding)

  def side_by_side(x, kernel):
    return _patches_times_kernel(x, kernel, strides, padding)

  def grouped(x, kernel):
    return _forward(x, kernel, strides, padding)

  return platforms.choose(one_by_one, side_by_side, x, kernel, tpu=grouped)


def _by_platform_fwd(x, kernel, strides, padding):
  return _by_platform(x, kernel, strides, padding), (x, kernel)


def _by_platform_bwd(strides, padding, residuals, dy):
  def one_by_one(x, kernel, dy):
    return _conv_bwd(strides, padding, (x, kernel), dy)

  def backward_of(convolve):
    def backward(x, kernel, dy):
      return jax.vjp(lambda *args: convolve(*args, strides, padding), x, kernel)[1](dy)

    return backward

  side_by_side, grouped = map(backward_of, (_patches_times_kernel, _forward))
  return platforms.choose(one_by_one, side_by_side, *residuals, dy, tpu=grouped)


_by_platform.defvjp(_by_platform_fwd, _by_platform_bwd)


def max_pool(
  x: jax.Array, window: int = 2, padding: Literal['VALID', 'SAME'] = 'VALID'
) -> jax.Array:
  """Maximum over square windows of x [B, H, W, C]; of equal pixels, the first learns.

  [B, H // window, W // window, C]: 'VALID' drops the rows and columns left over, 'SAME'
  gives them a window of their own.
  """
  if padding == 'SAME':
    rest = [(0, -n % window) for n in x.shape[1:3]]
    x = jnp.pad(x, [(0, 0), *rest, (0, 0)], constant_values=-jnp.inf)
  height, width = (n // window * window for n in x.shape[1:3])
  x = x[:, :height, :width]
  return _max_of_windows(x, window)


def _places(x, window):
  return [x[:, i::window, j::window] for i in range(window) for j in range(window)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_of_windows(x, window):
  return functools.reduce(jnp.maximum, _places(x, window))


def _max_of_windows_fwd(x, window):
  most = _max_of_windows(x, window)
  places = _places(x, window)
  first = jnp.full(most.shape, len(places) - 1, jnp.int8)
  for i in reversed(range(len(places) - 1)):
    first = jnp.where(places[i] == most, jnp.int8(i), first)
  return most, first


def _max_of_windows_bwd(window, first, dy):
  # A byte for each window is all that is left to read.
  batch, height, width, channels = dy.shape
  place = jnp.arange(window * window, dtype=jnp.int8)
  place = place.reshape(1, 1, window, 1, window, 1)
  first, dy = (a[:, :, None, :, None] for a in (first, dy))
  dx = jnp.where(first == place, dy, 0)
  return (dx.reshape(batch, height * window, width * window, channels),)


_max_of_windows.defvjp(_max_of_windows_fwd, _max_of_windows_bwd)
