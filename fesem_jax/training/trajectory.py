"""The local training of one client again, step by step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.cohorts.sampling import client_keys
from fesem_jax.core import batching, local_optimizers, tree
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Cohort, Params
from fesem_jax.training.batch_losses import gradient_of
from fesem_jax.training.cohort import Call, train_cohort
from fesem_jax.training.local_sgd import Fixed, Learner, local_step
from fesem_jax.training.reduction import Reduction
from fesem_jax.training.shared_start import NONE
from fesem_jax.utils.errors import UserError


class Task(NamedTuple):
  """The local training of one client in a round; its own arrays are [1, ...]."""

  start: Params  # the model that it starts from
  anchor: Params  # what the penalty pulls to; None is the start
  penalty: jax.Array | None  # [1] float32
  correction: Params  # added to every gradient, or None
  epochs: jax.Array | None  # [1] int32
  factors: jax.Array | None  # [1, N_max] float32 of the losses of its examples
  key: jax.Array  # [] of the round
  end: Params  # where it ends, as the whole cohort trains; None if not computed
  loss: jax.Array | None  # [] float32 what it then reports


def task_of(call: Call, data: FederatedData, row: jax.Array, whole: bool) -> Task:
  """What the client at place `row` [1] int32 of a cohort is to train on.

  `whole` trains the whole cohort too, which gives the end as the round's arithmetic
  does; all local models then exist at once.
  """
  objective, one = call.objective, Cohort(row, everyone=False)

  def params(models: ClientModels | None) -> Params:
    return None if models is None else models.of(one).params(1)

  penalty, correction = objective.penalty, None
  if penalty is not None:
    count = call.cohort.ids.shape
    penalty = jnp.broadcast_to(jnp.asarray(penalty, jnp.float32), count)[row]
  if (added := objective.correction) is not None:
    own = tree.rows_of(added.own, one)
    difference = jax.tree.map(jnp.subtract, added.common, own)
    correction = jax.tree.map(lambda x: jnp.where(added.applies, x, 0.0), difference)
  end = loss = None
  if whole:
    keep = Reduction(sent='nothing')
    if added is not None:
      objective = objective._replace(correction=added._replace(replaced=False))
    trained = train_cohort(
      call.local, call.starts, data, call.cohort, call.key, objective, keep
    )
    end, loss = tree.take(trained.params, row), trained.loss[row[0]]
  epochs = None if objective.epochs is None else objective.epochs[row]
  return Task(
    params(call.starts), params(objective.anchor), penalty, correction, epochs,
    tree.rows_of(objective.factors, one), call.key, end, loss,
  )  # fmt: skip


class Steps(NamedTuple):
  """A client's local training by step; those that it does not take are 0."""

  loss: jax.Array  # [T] float32 mean loss of the step's batch, before the step
  gradient: jax.Array  # [T] float32 L2 norm of that loss's gradient
  distance: jax.Array  # [T] float32 L2 distance from the start, after the step
  finite: jax.Array  # [T] bool whether all parameters are finite after the step
  taken: jax.Array  # [] int32 steps
  start: Params  # the model that it starts from
  end: Params  # the model after the last step, finite or not


def steps_of(call: Call, task: Task, data: FederatedData, width: int) -> Steps:
  """Trains a client again, and measures each step.

  The same client trains in all `width` places of a chunk, as many as in the round, so
  that each step is computed as it was beside others. Of `call`, only what is no array
  is used; `data` is the training split of this client alone, with the `max_examples` of
  all.
  """
  local, layers = call.local, call.objective.layers
  if call.objective.epochs is not None and not call.objective.most_epochs:
    raise UserError(
      'The method computes `epochs` of its `Objective` within the round; give the '
      'objective `most_epochs`, their upper bound, to replay a client.'
    )
  ids, alone = jnp.zeros(width, jnp.int32), width == 1
  keys = client_keys(task.key, data, ids)
  sizes = data.sizes(ids[:1])
  if alone:  # Without a client axis, as `train_chunk`.
    ids, keys = ids[0], keys[0]
  taken = batching.num_steps(local.schedule, sizes, data.max_examples, task.epochs)[0]
  start = tree.unstack(task.start, 0)
  frozen = None
  if layers is not None:
    frozen = {name: x for name, x in start.items() if name not in layers}

  def learning(params: Params) -> Params:
    if layers is None:
      return params
    return {name: params[name] for name in layers}

  anchor = task.start if task.anchor is None else task.anchor
  anchor = None if task.penalty is None else learning(tree.unstack(anchor, 0))
  prox = None if task.penalty is None else task.penalty[0]
  correction = None
  if task.correction is not None:
    correction = learning(tree.unstack(task.correction, 0))
  rate = local.rate(call.cohort)
  vary = None if call.objective.correction is None else call.objective.correction.vary

  def each(fn: Any, in_axes: Any = 0) -> Any:
    return fn if alone else jax.vmap(fn, in_axes, axis_size=width)

  def one_of(stack: Any) -> Any:
    return stack if alone else tree.unstack(stack, 0)

  factors = task.factors
  if factors is not None:
    factors = factors[0] if alone else jnp.repeat(factors, width, axis=0)
  orders, batch_at = batching.step_by_step(
    local.schedule, data, ids, keys, each, factors
  )

  def body(carry: Any, step: jax.Array) -> tuple[Any, Any]:
    learner, orders = carry
    orders, batch = batch_at(step, orders)

    def one_step(learner: Learner, batch: Any, key: jax.Array) -> Learner:
      added = correction
      if vary is not None:
        added = vary(step, learner.params, correction)
      return local_step(
        local, NONE, step, local.rate_of_step(step, rate),
        Fixed(frozen, anchor, prox, added, key), learner, batch, step < taken,
      )[0]  # fmt: skip

    before, key, own = one_of((learner.params, keys, batch))
    loss, gradient = gradient_of(local, key, step, own, frozen)(before)
    learner = each(one_step)(learner, batch, keys)
    after = one_of(learner.params)
    moved = jax.tree.map(jnp.subtract, after, learning(start))
    finite = tree.all_finite(tree.expand(after))[0]
    active = (step < taken).astype(jnp.float32)
    figures = active * loss, active * _norm(gradient), active * _norm(moved)
    return (learner, orders), (*figures, finite)

  copies = learning(start) if alone else tree.repeat(learning(start), width)

  def remembered(params: Params, key: jax.Array) -> Any:
    return local_optimizers.with_keys(local.optimizer.init(params), key)

  first = Learner(copies, each(remembered)(copies, keys), ())
  most = batching.most_steps(local.schedule, data.max_examples)
  (learner, _), (losses, gradients, distances, finite) = jax.lax.scan(
    body, (first, orders), jnp.arange(most, dtype=jnp.int32)
  )
  end = one_of(learner.params)
  end = end if frozen is None else frozen | end
  return Steps(losses, gradients, distances, finite, taken, start, end)


def _norm(params: Params) -> jax.Array:
  squares = (jnp.square(x).sum() for x in jax.tree.leaves(params))
  return jnp.sqrt(sum(squares, jnp.float32(0.0)))
