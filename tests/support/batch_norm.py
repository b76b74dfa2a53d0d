"""A float64 NumPy reference of BatchNorm, and of SGD on a network that has it.

The network is dense, norm, ReLU, logits. Its model is a dict of layers, each a dict of
arrays, as Flax names them.
"""

import flax.linen as nn
import jax
import numpy as np
from flax import nnx

MOMENTUM, EPSILON = 0.8, 1e-5
STATISTICS = ('mean', 'var')


class LinenNet(nn.Module):
  """The network in Linen."""

  width: int = 5
  classes: int = 3

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.Dense(self.width, name='dense')(x)
    x = nn.BatchNorm(not train, momentum=MOMENTUM, epsilon=EPSILON, name='norm')(x)
    return nn.Dense(self.classes, name='logits')(nn.relu(x))


class NnxNet(nnx.Module):
  """The network in NNX."""

  def __init__(self, inputs, rngs, width=5, classes=3):
    self.dense = nnx.Linear(inputs, width, rngs=rngs)
    self.norm = nnx.BatchNorm(width, momentum=MOMENTUM, epsilon=EPSILON, rngs=rngs)
    self.logits = nnx.Linear(width, classes, rngs=rngs)

  def __call__(self, x):
    return self.logits(nnx.relu(self.norm(self.dense(x))))


def from_params(params, row=None):
  """Our parameters, or one row of a stack, in float64."""
  return jax.tree.map(
    lambda x: np.asarray(x if row is None else x[row], np.float64), params
  )


def normalized(x, mean, var, layer):
  return (x - mean) / np.sqrt(var + EPSILON) * layer['scale'] + layer['bias']


def logits(model, x):
  """Outputs in evaluation: by the running statistics."""
  z = x.astype(np.float64) @ model['dense']['kernel'] + model['dense']['bias']
  h = normalized(z, model['norm']['mean'], model['norm']['var'], model['norm'])
  return np.maximum(h, 0) @ model['logits']['kernel'] + model['logits']['bias']


def step(model, x, y, rate, prox=0.0, start=None, decay=0.0):
  """One step of SGD on CE + prox |w - start|^2 with weight decay; the new model."""
  x = x.astype(np.float64)
  z = x @ model['dense']['kernel'] + model['dense']['bias']
  mean, var = z.mean(axis=0), z.var(axis=0)
  unit = (z - mean) / np.sqrt(var + EPSILON)
  h = unit * model['norm']['scale'] + model['norm']['bias']
  hidden = np.maximum(h, 0)
  out = hidden @ model['logits']['kernel'] + model['logits']['bias']
  p = np.exp(out - out.max(axis=1, keepdims=True))
  p /= p.sum(axis=1, keepdims=True)
  p[np.arange(len(y)), y] -= 1
  delta = p / len(y)
  of_h = (delta @ model['logits']['kernel'].T) * (h > 0)
  of_unit = of_h * model['norm']['scale']
  of_z = of_unit - of_unit.mean(axis=0) - unit * (of_unit * unit).mean(axis=0)
  of_z /= np.sqrt(var + EPSILON)
  gradient = {
    'dense': {'kernel': x.T @ of_z, 'bias': of_z.sum(axis=0)},
    'norm': {'scale': (of_h * unit).sum(axis=0), 'bias': of_h.sum(axis=0)},
    'logits': {'kernel': hidden.T @ delta, 'bias': delta.sum(axis=0)},
  }
  running = {'mean': mean, 'var': var}

  def moved(layer, name, w):
    if name in STATISTICS:
      return MOMENTUM * w + (1 - MOMENTUM) * running[name]
    g = gradient[layer][name]
    if start is not None:
      g = g + 2 * prox * (w - start[layer][name])
    return w - rate * (g + decay * w)

  return {
    layer: {name: moved(layer, name, w) for name, w in parts.items()}
    for layer, parts in model.items()
  }


def local_sgd(model, batches, rate, prox=0.0, decay=0.0):
  """A client's model after SGD on its batches (x, y)."""
  start = model
  for x, y in batches:
    model = step(model, x, y, rate, prox, start, decay)
  return model


def mean(models, weights=None):
  """The weighted mean of models."""
  return jax.tree.map(lambda *xs: np.average(xs, axis=0, weights=weights), *models)


def distance(a, b):
  """Squared distance of two models without their statistics."""
  return sum(
    ((w - b[layer][name]) ** 2).sum()
    for layer, parts in a.items()
    for name, w in parts.items()
    if name not in STATISTICS
  )
