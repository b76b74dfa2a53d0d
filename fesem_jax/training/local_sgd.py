"""Local SGD of one client: the steps that most methods train with (Algorithm 2)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from fesem_jax.core import parameter_names
from fesem_jax.core.tree import merge
from fesem_jax.core.types import Params
from fesem_jax.training.one_client import (
  Client,
  LocalModel,
  all_finite,
  over_batches,
  together,
  where,
)
from fesem_jax.utils.errors import check


def local_sgd(
  client: Client,
  *transformations: optax.GradientTransformation,
  start: Params = None,
  penalty: jax.Array | float | None = None,
  layers: Sequence[str] | None = None,
  factors: jax.Array | None = None,
) -> LocalModel:
  """Trains a client with its local optimizer on the loss of its examples.

  Args:
    client: the client.
    *transformations: transformations of the gradients before the local optimizer:
      `toward`, `plus`, or Optax's, but no complete optimizer.
    start: the model to start from; `Client.start` by default.
    penalty: [] lambda of lambda |w - start|^2 (Eq. 7); None leaves the term out.
    layers: names, or patterns such as **/norm*, of layers that learn; None is all.
    factors: [N_max] float32 factors of the losses of its examples; None is 1.

  Raises:
    UserError: if the model lacks one of the layers, or factors have another shape.
  """
  statistics = client.local.model.statistics
  start, frozen = client.start if start is None else start, None
  learning = start
  if layers is not None:
    frozen, learning = frozen_and_learning(start, layers)
  if penalty is not None:
    transformations = (toward(learning, penalty), *transformations)
  optimizer = client.local.optimizer
  if transformations:
    if statistics:
      mask = _zero_statistics(statistics)
      transformations = tuple(optax.chain(part, mask) for part in transformations)
    optimizer = optax.chain(*transformations, optimizer)

  def step(t, carry, batch):
    params, state = carry
    loss_of = batch.loss if frozen is None else lambda p: batch.loss(merge(frozen, p))
    with jax.default_matmul_precision(client.local.precision):
      loss, grads = jax.value_and_grad(loss_of)(params)
    new = client.descend(t, together(grads), state, params, optimizer)
    return where(batch.active, new, carry), loss

  first = client.optimizer_state(learning, optimizer)
  keeps = 'optimizer' in client.memory
  if keeps and transformations:
    first = (*first[:-1], client.resumed(first[-1]))
  elif keeps:
    first = client.resumed(first)
  carry = learning, first
  (last, state), loss = over_batches(client, carry, step, factors)
  client.leave('optimizer', (state[-1] if transformations else state, jnp.bool_(True)))
  finite = all_finite(last)
  end = where(finite, last, learning)
  if frozen is not None:
    end = merge(frozen, end)
  return LocalModel(end, loss, finite, client.steps)


def _zero_statistics(statistics: tuple[str, ...]) -> optax.GradientTransformation:
  """Sets the gradients of statistics to zero again."""
  return optax.stateless(lambda grads, _: parameter_names.zeroed(grads, statistics))


def frozen_and_learning(params: Params, layers: Sequence[str]) -> tuple[Params, Params]:
  """The frozen layers and those that learn; see `local_sgd`."""
  layer_names = parameter_names.chosen(params, layers, 'layers')
  check(layer_names, f'layers: must name some of {", ".join(params)}')
  frozen, learning = parameter_names.split(params, layers)
  return parameter_names.without_none(frozen), parameter_names.without_none(learning)


def toward(anchor: Params, factor: jax.Array | float) -> optax.GradientTransformation:
  """Adds the gradient of the penalty factor * |w - anchor|^2 (Eq. 7)."""

  def pulled(grads: Params, params: Params) -> Params:
    return jax.tree.map(lambda g, w, a: g + 2 * factor * (w - a), grads, params, anchor)

  return optax.stateless(pulled)


def plus(correction: Params) -> optax.GradientTransformation:
  """Adds `correction` to the gradient of every step (SCAFFOLD, FedDyn, FedDANE)."""
  return optax.stateless(lambda grads, _: jax.tree.map(jnp.add, grads, correction))
