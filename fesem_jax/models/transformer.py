"""A small causal transformer for sequences of tokens."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fesem_jax.models.layers import EMBEDDING, Dense, Embedding


class Positions(nn.Module):
  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    start = nn.linear.default_embed_init
    return x + self.param(EMBEDDING, start, x.shape[1:])[None]


class Attention(nn.Module):
  """Each position looks at itself and those before it."""

  heads: int  # their number divides the width

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    batch, length, width = x.shape
    head_width = width // self.heads
    parts = Dense(3 * width, name='query_key_value')(x)
    query, key, value = (
      part.reshape(batch, length, self.heads, head_width)
      for part in jnp.split(parts, 3, axis=-1)
    )
    scores = jnp.einsum('bshd,bthd->bhst', query, key) * head_width**-0.5
    earlier = jnp.tril(jnp.ones((1, 1, length, length), bool))
    weights = nn.softmax(jnp.where(earlier, scores, -jnp.inf))
    attended = jnp.einsum('bhst,bthd->bshd', weights, value)
    return Dense(width, name='out')(attended.reshape(batch, length, width))


class TransformerBlock(nn.Module):
  """Attention and two dense layers, each normalized before and added to its input."""

  heads: int  # see `Attention`

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = x + Attention(self.heads, name='attention')(nn.LayerNorm(name='norm0')(x))
    y = nn.LayerNorm(name='norm1')(x)
    y = nn.gelu(Dense(4 * x.shape[-1], name='dense0')(y))
    return x + Dense(x.shape[-1], name='dense1')(y)


class Transformer(nn.Module):
  """Embeddings of tokens and places, pre-norm blocks as in GPT-2, a norm, logits."""

  num_classes: int  # L, also the number of tokens
  width: int = 128  # of the vectors
  depth: int = 2  # number of blocks
  heads: int = 4  # of each attention; they divide the width
  # Whether logits are [B, S, L], of each position, in place of [B, L].
  every_position: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = Embedding(self.num_classes, self.width, name='embedding')(x)
    x = Positions(name='positions')(x)
    for i in range(self.depth):
      x = TransformerBlock(self.heads, name=f'block{i}')(x)
    x = x if self.every_position else x[:, -1]
    return Dense(self.num_classes, name='logits')(nn.LayerNorm(name='norm')(x))
