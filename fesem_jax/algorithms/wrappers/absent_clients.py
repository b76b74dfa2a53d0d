"""Clients that were absent for long, or never took part, choose a center by loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common.wrapped import (
  check_wrappable,
  inner,
  num_clusters,
  number_of,
  own_of,
  starting_from,
  step_from,
  took_part,
  wrap,
)
from fesem_jax.core import prng_streams, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.made_by import recorded
from fesem_jax.core.sampling import everyone, sample_clients
from fesem_jax.core.traffic import Traffic, with_choices
from fesem_jax.training.client_losses import least_loss, start_by_loss
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count


class AgesState(NamedTuple):
  """State of `with_max_age`."""

  method: Any  # of the wrapped method
  seen: jax.Array  # [M] int32 round in which each client last took part, 0 the start


@recorded
def with_max_age(method: Algorithm, rounds: Count) -> Algorithm:
  """Lets clients that were absent for long start from the center of least loss.

  Centers move on while a client is not drawn, so that another one may serve it better.

  Args:
    method: a method with centers.
    rounds: a client that last took part more than so many rounds ago starts from the
      center of least training loss when it is drawn again.

  Raises:
    UserError: on a method without centers.
  """
  check_wrappable(method, 'max_age', trains=True)

  def init(key, data, cohort=None):
    seen = jnp.zeros(data.num_clients, jnp.int32)
    return AgesState(method.init(key, data, cohort), seen)

  def starts_of(state, data, cohort):
    own, centers = own_of(state, cohort), inner(state).centers
    old = number_of(state) - tree.rows_of(state.seen, cohort) > variable(rounds)
    return start_by_loss(method.local, centers, own, old, data, cohort)

  def train(local, state, data, cohort, key, reduction):
    within = starting_from(state.method, cohort, starts_of(state, data, cohort))
    assert method.train is not None
    return method.train(local, within, data, cohort, key, reduction)

  def step(state, data, cohort, key):
    number, starts = number_of(state), starts_of(state, data, cohort)
    after, info = step_from(method, state.method, starts, data, cohort, key)
    seen = jnp.where(took_part(info), number, tree.rows_of(state.seen, cohort))
    return AgesState(after, tree.with_rows(state.seen, cohort, seen)), info

  traffic = _with_choices(
    method.traffic,
    lambda state: state.seen,
    lambda seen, drawn: drawn.number - seen[drawn.ids] > rounds,
  )
  return wrap(method, step, init=init, train=train, traffic=traffic)


def _with_choices(
  traffic: Traffic | None,
  look: Callable[[Any], jax.Array],
  chooses: Callable[[Any, Any], Any],
) -> Traffic | None:
  """The traffic of a method in a state that nests its own, where some clients choose.

  Args:
    traffic: of the method.
    look: state of the wrapped method -> what decides who chooses among all centers.
    chooses: (that, `Drawn`) -> [S] bool.
  """
  if traffic is None:
    return None
  of_method, look_method = traffic.of_round, traffic.known

  def known(state):
    inner = None if look_method is None else look_method(state.method)
    return look(state), inner

  def of_round(known, drawn):
    own, inner = known
    return of_method(inner, drawn.choosing(chooses(own, drawn)))

  return with_choices(traffic._replace(of_round=of_round, known=known))


class LateJoinsState(NamedTuple):
  """State of `with_late_joins`."""

  method: Any  # of the wrapped method
  joined: jax.Array  # [M] bool


@recorded
def with_late_joins(method: Algorithm, first_clients: Count) -> Algorithm:
  """Lets clients join when they are first drawn, after the first clustering.

  Only `first_clients` random clients take part in the first clustering. All others
  join when they are first drawn, from the center of least training loss, and deploy
  that center until then. A round's clusters are those of clients that have joined;
  where models are measured, those that all clients deploy.

  Args:
    method: a method with centers, whose `init` takes a cohort.
    first_clients: how many there are; at least K.

  Raises:
    UserError: on a method without centers, or, when it starts, fewer clients than
      centers.
  """
  check_wrappable(method, 'late_joins', trains=True)
  local = method.local

  def init(key, data, cohort=None):
    sample_key = prng_streams.fold(key, prng_streams.SAMPLE)
    cohort = sample_clients(sample_key, data, first_clients, local.mesh)
    count = num_clusters(jax.eval_shape(method.init, key, data))
    check(first_clients >= count, f'init_clients: must be at least {count}')
    state = method.init(key, data, cohort)
    first = jnp.ones(cohort.ids.shape, bool)
    none = jnp.zeros(data.num_clients, bool)
    return LateJoinsState(state, tree.with_rows(none, cohort, first))

  def starts_of(state, data, cohort):
    own, joined = own_of(state, cohort), tree.rows_of(state.joined, cohort)
    return start_by_loss(local, inner(state).centers, own, ~joined, data, cohort)

  def train(local, state, data, cohort, key, reduction):
    within = starting_from(state.method, cohort, starts_of(state, data, cohort))
    assert method.train is not None
    return method.train(local, within, data, cohort, key, reduction)

  def step(state, data, cohort, key):
    starts = starts_of(state, data, cohort)
    after, info = step_from(method, state.method, starts, data, cohort, key)
    joined = tree.rows_of(state.joined, cohort) | took_part(info)
    joined = tree.with_rows(state.joined, cohort, joined)
    return LateJoinsState(after, joined), info

  def deployed(state, data):
    models = method.deployed(state.method, data)
    nearest = least_loss(local, models.shared, data, everyone(data))
    assert models.choice is not None
    return ClientModels(models.shared, jnp.where(state.joined, models.choice, nearest))

  traffic = _with_choices(
    method.traffic,
    lambda state: state.joined,
    lambda joined, drawn: ~joined[drawn.ids],
  )
  if traffic is not None:
    of_first, starters = traffic.of_start, traffic.starters
    traffic = traffic._replace(
      of_start=lambda num_clients: of_first(min(first_clients, num_clients)),
      starters=lambda num_clients: starters(min(first_clients, num_clients)),
    )
  return wrap(method, step, init=init, deployed=deployed, train=train, traffic=traffic)
