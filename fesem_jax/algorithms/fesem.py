"""FeSEM: multi-center federated learning by stochastic EM.

Long et al., "Multi-center federated learning: clients clustering for better
personalization", World Wide Web 2022: Algorithm 1 with the initialization of
Section 6.1.4. Symbols: W_i `client_params`, W~(k) `centers`, r_i `assignment`,
lambda `prox_lambda`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax import em, server, tree
from fesem_jax.algorithms.centers import (
  MAX_INITIAL_CLIENTS,
  reseed_empty_centers,
  round_info,
  train_and_cluster,
)
from fesem_jax.base import Params
from fesem_jax.errors import UserError, check_at_least, check_choice
from fesem_jax.local import WEIGHTINGS, train_cohort
from fesem_jax.losses import cohort_losses
from fesem_jax.method import Algorithm, ClientModels
from fesem_jax.server import ServerOptimizer
from fesem_jax.training import LocalTraining


class FesemState(NamedTuple):
  """State of FeSEM."""

  centers: Params  # [K, ...] W~(k)
  assignment: jax.Array  # [M] int32 r_i
  rounds: jax.Array  # [] int32 rounds done
  client_params: Params  # [M, ...] W_i after its last training; None if streamed
  server: Any = ()  # of the server optimizer


def fesem(
  local: LocalTraining,
  *,
  num_clusters: int = 4,
  prox_lambda: float = 0.01,
  prox_weighting: str = 'uniform',
  weighting: str = 'uniform',
  cluster_on: str = 'all',
  loss_check_every: int = 0,
  reseed_empty: bool = False,
  init_epochs: int = 1,
  init_restarts: int = 20,
  init_seeding: str = 'random',
  init_clients: int = 0,
  client_state: str = 'stacked',
  server_optimizer: ServerOptimizer = None,
) -> Algorithm:
  """Builds FeSEM(K).

    local   W_i   <- SGD from W~(r_i) on L_i(W) + lambda |W - W~(r_i)|^2    (Eq. 7)
    E-step  r_i   <- argmin_k |W_i - W~(k)|^2                               (Eq. 8)
    M-step  W~(k) <- mean of W_i over the clients with r_i = k              (Eq. 9)

  `init` does the first E-step and M-step, and a round is local training, E-step,
  M-step: the order of the paper's Algorithm 1, E, M, local, E, M, local, ...

  The paper minimizes alpha_i L_i + (lambda / m) Dist (Eq. 7). Divided by
  alpha_i, the client's own SGD is on L_i + lambda / (m alpha_i) Dist, where
  Dist is the squared L2 distance, without a half: its gradient is 2 (w - c).

  A client that is not drawn keeps its assignment and deploys that center as it is
  now. A client stays near the center that it starts from, so a wrong assignment can
  last. Two options beyond the paper mend that: `loss_check_every` and
  `reseed_empty`.

  Args:
    local: how clients train.
    num_clusters: K.
    prox_lambda: lambda; the paper does not state its value.
    prox_weighting: 'uniform' uses lambda for every client, 'paper'
      lambda / (m alpha_i).
    weighting: 'uniform' means of clients (Eq. 9), or 'by_examples', the
      "micro" variant.
    cluster_on: 'all' parameters are compared, or only those of the named layer,
      e.g. 'logits', as the authors' code does.
    loss_check_every: in every so many rounds, clients start from the center of
      least training loss instead of their own; 0 is never, as in the paper.
    reseed_empty: a center that lost all its clients moves to the client farthest
      from its own center, which joins it (Eq. 6 is reported as before that); in the
      paper it stays where it is.
    init_epochs: local epochs from one common random model before clustering.
    init_restarts: restarts of that clustering; the best starts FeSEM.
    init_seeding: 'random' (the paper) or 'plusplus'.
    init_clients: random clients whose models that clustering sees; 0 is all, but
      `centers.MAX_INITIAL_CLIENTS` at most where `client_state` is 'streamed'.
    client_state: 'stacked' keeps W_i of all clients, M * P numbers; 'streamed'
      keeps none and needs only the chunk's, the centers and `init_clients`.
    server_optimizer: moves each center by a step along the mean change of its clients
      (FedOpt) instead of to their mean, as in the paper.

  Raises:
    UserError: on an option outside its range.
  """
  check_choice('prox_weighting', prox_weighting, ('uniform', 'paper'))
  check_choice('weighting', weighting, WEIGHTINGS)
  check_choice('init_seeding', init_seeding, ('random', 'plusplus'))
  check_choice('client_state', client_state, ('stacked', 'streamed'))
  layers = tuple(jax.eval_shape(local.model.init, jax.random.key(0)))
  check_choice('cluster_on', cluster_on, ('all', *layers))
  check_at_least(
    1, num_clusters=num_clusters, init_epochs=init_epochs, init_restarts=init_restarts
  )
  check_at_least(0, prox_lambda=prox_lambda, init_clients=init_clients)
  check_at_least(0, loss_check_every=loss_check_every)
  if reseed_empty and client_state != 'stacked':
    raise UserError(
      '`reseed_empty` needs the models of all clients: leave out '
      f'`client_state={client_state}`.'
    )
  stacked = client_state == 'stacked'

  def compared(params: Params) -> Params:
    return params if cluster_on == 'all' else params[cluster_on]

  def prox(data, cohort):
    if prox_lambda == 0:
      return None
    if prox_weighting == 'uniform':
      return prox_lambda
    sizes = data.sizes().astype(jnp.float32)  # 1 / (m alpha_i) = mean n / n_i
    mean_size = sizes.sum() / (sizes > 0).sum()
    return prox_lambda * mean_size / jnp.maximum(data.sizes(cohort.ids), 1)

  def init(key, data):
    most = init_clients
    if not stacked:
      most = min(most or MAX_INITIAL_CLIENTS, MAX_INITIAL_CLIENTS)
    initial = train_and_cluster(
      local,
      data,
      key,
      num_clusters,
      epochs=init_epochs,
      restarts=init_restarts,
      seeding=init_seeding,
      weighting=weighting,
      compared=compared,
      max_clients=most,
      keep=stacked,
    )
    return FesemState(
      initial.centers,
      initial.assignment,
      jnp.int32(0),
      initial.client_params,
      server.init(server_optimizer, initial.centers),
    )

  def start_of(state, data, cohort):
    own = tree.rows_of(state.assignment, cohort)
    if not loss_check_every:
      return own

    def of_least_loss():
      losses = cohort_losses(local, state.centers, data, cohort)
      return losses.argmin(axis=1).astype(jnp.int32)

    check = (state.rounds + 1) % loss_check_every == 0
    return jax.lax.cond(check, of_least_loss, lambda: own)

  def train(local, state, data, cohort, key, **options):
    starts = ClientModels(state.centers, start_of(state, data, cohort))
    penalty = prox(data, cohort)
    return train_cohort(local, starts, data, cohort, key, prox=penalty, **options)

  def step(state, data, cohort, key):
    def e_and_m_step(trained, starts, total):
      # E-step (Eq. 8): every client goes to the center nearest to its model.
      nearest, distance = em.e_step(compared(trained.params), compared(starts.shared))
      new = jnp.where(trained.took_part(), nearest, starts.choice)
      if cluster_on != 'all':  # Eq. 6 is about all parameters.
        own = tree.take(starts.shared, new)
        distance = tree.row_distances(trained.params, own)
      # M-step (Eq. 9): the sum of the models of each center's clients ...
      total = total.add(trained, new, distance, weighting, starts.shared)
      return (new, distance), total

    # Local update (Algorithm 2): every client trains from its center. The two steps
    # follow for each chunk of clients as it finishes.
    trained = train(
      local,
      state,
      data,
      cohort,
      key,
      fold=e_and_m_step,
      sums=em.Sums.zeros(state.centers, weighting),
      keep=stacked,
      into=state.client_params if cohort.everyone else None,
    )
    new, distance = trained.folded
    new = jnp.where(trained.took_part(), new, tree.rows_of(state.assignment, cohort))
    assignment = tree.with_rows(state.assignment, cohort, new)
    # ... and their mean.
    clients = trained.sums.weighted
    centers, of_server = server.step(
      server_optimizer, state.server, state.centers, clients
    )

    client_params = tree.with_rows(state.client_params, cohort, trained.params)
    value = trained.sums.objective(state.centers, centers)
    if reseed_empty:
      distance = jnp.where(trained.took_part(), distance, -1.0)
      centers, assignment = reseed_empty_centers(
        centers, assignment, trained.params, distance, cohort, data
      )
    info = round_info(trained, num_clusters, value, state.assignment, assignment, data)
    rounds = state.rounds + 1
    return FesemState(centers, assignment, rounds, client_params, of_server), info

  def deployed(state, data):
    del data
    return ClientModels(state.centers, state.assignment)

  return Algorithm(local, init, step, deployed, train=train)
