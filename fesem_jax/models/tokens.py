"""First and last layers of networks for sequences of tokens."""

import flax.linen as nn
import jax
import jax.numpy as jnp

# With so many tokens or fewer, a product with one-hot rows is faster than looking rows
# up: the gradient of looking up is a scatter.
_FEW = 1024

# What the table of vectors is called.
EMBEDDING = 'embedding'


class Embedding(nn.Module):
  """A vector for each token, of float32 too; numbers beyond the ends are the ends."""

  vocabulary: int  # V, how many tokens there are
  width: int  # of the vectors

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[B, S, width] vectors of the tokens [B, S]."""
    shape = (self.vocabulary, self.width)
    table = self.param(EMBEDDING, nn.linear.default_embed_init, shape)
    tokens = jnp.clip(jnp.round(x).astype(jnp.int32), 0, self.vocabulary - 1)
    if self.vocabulary <= _FEW:
      return jax.nn.one_hot(tokens, self.vocabulary, dtype=table.dtype) @ table
    return jnp.take(table, tokens, axis=0)
