"""Recurrent networks for sequences of tokens: LEAF's stacked LSTM, and a GRU."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fesem_jax.models import dense_layers
from fesem_jax.models.layers import Dense, Embedding

# Of a recurrent layer: the kernel that its own states meet, and the bias of a GRU that
# is reset with what this kernel gives.
RECURRENT, RECURRENT_BIAS = 'recurrent', 'recurrent_bias'

Carry = tuple[jax.Array, ...]  # Arrays [B, H], the first of them the state h.
# (carry, inputs [B, G] of a step, h @ kernel + bias [B, G]) -> the next carry.
Step = Callable[[Carry, Any, jax.Array], Carry]


class Cell(NamedTuple):
  gates: int  # G / H
  carries: int  # number of arrays in the carry, which start at zero
  step: Step
  # Whether inputs and product matter as their sum only; `step` then gets it as the
  # product, and None as inputs. Their gradients are the same.
  added: bool


def _run(cell: Cell, kernel: jax.Array, bias: jax.Array, x: jax.Array) -> Any:
  """The carry before every step [S, ...], its product, and the state after it."""

  def body(carry: Carry, x: jax.Array) -> Any:
    product = carry[0] @ kernel + bias[None]
    if cell.added:
      product = product + x
    after = cell.step(carry, None if cell.added else x, product)
    return after, (carry, product, after[0])

  zeros = jnp.zeros((x.shape[1], kernel.shape[0]), x.dtype)
  return jax.lax.scan(body, (zeros,) * cell.carries, x)[1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def recur(cell: Cell, kernel: jax.Array, bias: jax.Array, x: jax.Array) -> jax.Array:
  """[S, B, H] states h_t = step(h_{t-1}, x_t, h_{t-1} kernel + bias) of x [S, B, G]."""
  return _run(cell, kernel, bias, x)[2]


def _fwd(cell, kernel, bias, x):
  before, products, h = _run(cell, kernel, bias, x)
  return h, (before, products, None if cell.added else x, kernel)


def _bwd(cell, residuals, dh):
  before, products, x, kernel = residuals
  turned = kernel.T

  def body(dafter, step):
    before, x, product, dh = step
    pull = jax.vjp(cell.step, before, x, product)[1]
    dbefore, dx, dproduct = pull((dafter[0] + dh, *dafter[1:]))
    return (dbefore[0] + dproduct @ turned, *dbefore[1:]), (dx, dproduct)

  zeros = jnp.zeros_like(dh[0])
  steps = before, x, products, dh
  _, (dx, dproducts) = jax.lax.scan(body, (zeros,) * cell.carries, steps, reverse=True)
  dx = dproducts if cell.added else dx
  states, dproducts = (a.reshape(-1, a.shape[-1]) for a in (before[0], dproducts))
  return states.T @ dproducts, dproducts.sum(axis=0), dx


recur.defvjp(_fwd, _bwd)


def _lstm_step(carry: Carry, x: None, gates: jax.Array) -> Carry:
  del x  # Is in the gates.
  # Of all gates in one pass: a sigmoid of each part alone takes four times as long.
  take, forget, _, give = jnp.split(nn.sigmoid(gates), 4, axis=-1)
  new = jnp.tanh(jnp.split(gates, 4, axis=-1)[2])
  cell = forget * carry[1] + take * new
  return give * jnp.tanh(cell), cell


def _gru_step(carry: Carry, x: jax.Array, product: jax.Array) -> Carry:
  (x_reset, x_keep, x_new), (reset, keep, new) = (
    jnp.split(gates, 3, axis=-1) for gates in (x, product)
  )
  keep = nn.sigmoid(x_keep + keep)
  new = jnp.tanh(x_new + nn.sigmoid(x_reset + reset) * new)
  return ((1 - keep) * new + keep * carry[0],)


CELLS = {
  'lstm': Cell(4, 2, _lstm_step, added=True),
  'gru': Cell(3, 1, _gru_step, added=False),
}


def _lstm_bias(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Zeros, but 1 for the forget gate, as LEAF's cells add it."""
  width = shape[0] // 4
  return jnp.zeros(shape).at[width : 2 * width].set(1.0)


class Recurrence(nn.Module):
  """One recurrent layer; gates stand in the order of PyTorch's weights.

  LSTM: input, forget, new, output. GRU: reset, update, new, with a second bias of the
  new gate, which resets the product with the recurrent kernel, as in cuDNN.
  """

  kind: str  # 'lstm' or 'gru'
  width: int  # H

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    cell = CELLS[self.kind]
    size = cell.gates * self.width
    lstm = self.kind == 'lstm'
    lecun, zeros = nn.initializers.lecun_normal(), nn.initializers.zeros_init()
    kernel = self.param('kernel', lecun, (x.shape[-1], size))
    recurrent = self.param(RECURRENT, lecun, (self.width, size))
    bias = self.param('bias', _lstm_bias if lstm else zeros, (size,))
    inner_bias = jnp.zeros(size)
    if not lstm:
      new_bias = self.param(RECURRENT_BIAS, zeros, (self.width,))
      inner_bias = inner_bias.at[-self.width :].set(new_bias)
    inputs = dense_layers.product(x, kernel) + bias[None, None]
    return recur(cell, recurrent, inner_bias, inputs)


class Recurrent(nn.Module):
  """Embedding, recurrent layers, logits; of 'lstm', LEAF's network for Shakespeare."""

  kind: str  # 'lstm' or 'gru'
  num_classes: int  # L, also the number of tokens
  embedding: int = 8  # width of the vectors of tokens
  width: int = 256  # of each layer
  depth: int = 2  # number of layers
  # Whether logits are [B, S, L], of each position, in place of [B, L].
  every_position: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = Embedding(self.num_classes, self.embedding, name='embedding')(x)
    x = x.swapaxes(0, 1)
    for i in range(self.depth):
      x = Recurrence(self.kind, self.width, name=f'{self.kind}{i}')(x)
    x = x.swapaxes(0, 1) if self.every_position else x[-1]
    return Dense(self.num_classes, name='logits')(x)
