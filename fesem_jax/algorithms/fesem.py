"""FeSEM: multi-center federated learning by stochastic EM.

Long et al., "Multi-center federated learning: clients clustering for better
personalization", World Wide Web 2022: Algorithm 1 with the initialization of
Section 6.1.4. Symbols: W_i `client_params`, W~(k) `centers`, r_i `assignment`,
lambda `prox_lambda`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fesem_jax.aggregation import server_optimizers
from fesem_jax.aggregation.robust import aggregator
from fesem_jax.aggregation.server_optimizers import ServerOptimizer
from fesem_jax.algorithms.common.centers import reseed_empty_centers, round_info
from fesem_jax.algorithms.common.fesem_options import check_options
from fesem_jax.algorithms.common.fesem_start import start_fesem
from fesem_jax.algorithms.common.recluster import Checks, recluster
from fesem_jax.algorithms.common.starting_centers import starting_centers
from fesem_jax.clustering import comparison, em
from fesem_jax.cohorts.sampling import everyone
from fesem_jax.core import offloading, tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.hyperparameters import variable
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.sums import mean_of
from fesem_jax.core.types import Params
from fesem_jax.training.client_losses import least_loss
from fesem_jax.training.cohort import Stays, train_cohort


class FesemState(NamedTuple):
  """State of FeSEM."""

  centers: Params  # [K, ...] W~(k)
  assignment: jax.Array  # [M] int32 r_i; K of clients that have yet to join
  rounds: jax.Array  # [] int32 rounds done
  client_params: Any  # [M, ...] W_i after its last training; None if streamed
  server: Any = ()  # of the server optimizer
  seen: Any = None  # [M] int32 round of W_i's last training, 0 the start, -1 none
  checks: Any = None  # `Checks`, with `recluster_every`


def fesem(
  local: LocalTraining,
  *,
  num_clusters: int = 4,
  prox_lambda: float = 0.01,
  prox_weighting: str = 'uniform',
  weighting: str = 'uniform',
  cluster_on: str = 'all',
  temperature: float = 0.0,
  aggregation: str = 'mean',
  beta: float = 0.1,
  norm_bound: float = 0.0,
  krum_models: int = 1,
  loss_check_every: int = 0,
  recluster_every: int = 0,
  reseed_empty: bool = False,
  max_age: int = 0,
  late_joins: bool = False,
  init_models: str = 'common',
  init_epochs: int = 1,
  init_restarts: int = 20,
  init_seeding: str = 'random',
  init_clients: int = 0,
  init_shuffle: float = 0.0,
  client_state: str = 'stacked',
  track_objective: bool = False,
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
  last. Options beyond the paper mend that: `recluster_every`, `loss_check_every`,
  `reseed_empty`, and, for clients that are seldom drawn, `max_age`.

  Args:
    local: how clients train.
    num_clusters: K.
    prox_lambda: lambda; the paper does not state its value.
    prox_weighting: 'uniform' uses lambda for every client, 'paper'
      lambda / (m alpha_i).
    weighting: of clients in Eq. 6 and 9: 'uniform', or 'by_examples', the
      "micro" variant.
    cluster_on: 'all' parameters are compared, or only those of the named layer,
      e.g. 'logits', as the authors' code does; or 'matched': FeSEM-MA (Section 5.1),
      which compares and averages models with their hidden units in the order that
      brings each nearest to the center, see `matching`.
    temperature: positive, each client counts in every center's mean by its
      responsibility, see `em.responsibilities`; it still starts from the nearest.
      0 is Eq. 8.
    aggregation: of the clients of each center: 'mean' (Eq. 9), or 'median',
      'trimmed_mean', 'norm_bound' or 'krum' in its place, which withstand bad clients
      and weigh clients alike; see `aggregation.aggregator`.
    beta: see `aggregation.aggregator`.
    norm_bound: see `aggregation.aggregator`.
    krum_models: see `aggregation.aggregator`.
    loss_check_every: in every so many rounds, clients start from the center of
      least training loss instead of their own; 0 is never, as in the paper.
    recluster_every: after so many rounds, clients train from the mean of the
      centers and are clustered anew, see `recluster`; each time clusters are found
      right, the wait for the next check doubles. 0 is never, as in the paper. A
      check needs as much memory as the first clustering, and takes the place of a
      check of losses that is due in the same round.
    reseed_empty: a center that lost all its clients moves to the client farthest
      from its own center, which joins it (Eq. 6 is reported as before that); in the
      paper it stays where it is.
    max_age: a client that last took part more than so many rounds ago starts from the
      center of least training loss when it is drawn again; 0 is never.
    late_joins: only the `init_clients` clients of the first clustering take part in
      it. All others join when they are first drawn, from the center of least training
      loss, and deploy that center until then. A round's clusters are those of clients
      that have joined; where models are measured, those that all clients deploy.
    init_models: before the first clustering, clients train from one 'common' random
      model (the paper), or each from a 'random' one of its own.
    init_epochs: local epochs of that training.
    init_restarts: restarts of that clustering; the best starts FeSEM.
    init_seeding: 'random' (the paper) or 'plusplus'.
    init_clients: random clients whose models that clustering sees; 0 is all, but
      `first_clusters.MAX_INITIAL_CLIENTS` at most unless `client_state` is 'stacked'.
    init_shuffle: probability that a client is put into a random cluster after that
      clustering: wrong starts, to study.
    client_state: 'stacked' keeps W_i of all clients, M * P numbers, on the devices,
      'offloaded' in the memory of their host; 'streamed' keeps none. The last two need
      only the chunk's, the centers and `init_clients` on the devices.
    track_objective: whether rounds report Eq. 6 after the local step and after the
      E-step too.
    server_optimizer: moves each center by a step along the mean change of its clients
      (FedOpt) instead of to their mean, as in the paper.

  Raises:
    UserError: on an option outside its range, or options that exclude each other.
  """
  check_options(**dict(locals()))  # Every argument by its name.
  compare = comparison.build(cluster_on, local.model)
  align = compare.align
  matched, kept = cluster_on == comparison.MATCHED, client_state != 'streamed'
  rule = aggregator(aggregation, beta, norm_bound, krum_models)
  aggregate = None if aggregation == 'mean' else rule  # Sums need no stack.
  # Distances between centers say who stays where whole models go to one center each.
  may_stay = not (compare.partial or matched or temperature)

  def prox(data, cohort):
    if prox_lambda == 0:
      return None
    if prox_weighting == 'uniform':
      return variable(prox_lambda)
    sizes = data.sizes().astype(jnp.float32)  # 1 / (m alpha_i) = mean n / n_i
    mean_size = sizes.sum() / (sizes > 0).sum()
    return variable(prox_lambda) * mean_size / jnp.maximum(data.sizes(cohort.ids), 1)

  def init(key, data):
    start = start_fesem(
      local,
      data,
      key,
      num_clusters,
      weighting=weighting,
      comparison=compare,
      aggregate=aggregate,
      init_models=init_models,
      init_epochs=init_epochs,
      init_restarts=init_restarts,
      init_seeding=init_seeding,
      init_clients=init_clients,
      init_shuffle=init_shuffle,
      late_joins=late_joins,
      client_state=client_state,
    )
    return FesemState(
      start.centers,
      start.assignment,
      jnp.int32(0),
      start.client_params,
      server_optimizers.init(server_optimizer, start.centers),
      start.seen if late_joins or max_age else None,
      Checks.first(recluster_every) if recluster_every else None,
    )

  def start_of(state, data, cohort, may_check=True):
    number, check = state.rounds + 1, None
    if loss_check_every and may_check:
      check = number % variable(loss_check_every) == 0
      check &= ~held(state)
    own, seen = (tree.rows_of(x, cohort) for x in (state.assignment, state.seen))
    return starting_centers(
      local,
      state.centers,
      own,
      data,
      cohort,
      number,
      seen=seen,
      max_age=max_age,
      loss_check=check,
    )

  def held(state):
    """[] bool: whether clients keep their clusters in this round."""
    return state.checks.hold if recluster_every else jnp.bool_(False)

  def train(local, state, data, cohort, key, **options):
    starts = ClientModels(state.centers, start_of(state, data, cohort))
    penalty = prox(data, cohort)
    return train_cohort(local, starts, data, cohort, key, prox=penalty, **options)

  def room_for_models(state, cohort):
    """Where the cohort's models are put: in the old ones' memory, or the host's."""
    if cohort.everyone:
      return state.client_params
    if client_state == 'offloaded':  # Room alone: they start from centers.
      one = tree.unstack(state.centers, 0)
      return offloading.repeat(one, cohort.ids.shape[0], local.mesh)
    return None

  def em_round(state, data, cohort, key):
    def e_and_m_step(trained, starts, sums, known):
      centers, own = starts.shared, starts.choice
      of_centers, _, hold = known
      # E-step (Eq. 8): every client goes to the center nearest to its model.
      if trained.moved is None:
        nearest, distance, models = compare.nearest(trained.params, of_centers)
      else:
        models, moved = trained.params, trained.moved
        nearest, distance = jax.lax.cond(
          surely_stay(starts, moved, known).all(),
          lambda: (own, moved),
          lambda: em.e_step(models, centers),
        )
      new = jnp.where(trained.took_part() & ~hold, nearest, own)
      if align is not None and recluster_every:
        # Units in the order of the center that takes the model, where it is held.
        models = jax.lax.cond(
          hold,
          lambda: align(trained.params, tree.take(centers, own), None),
          lambda: models,
        )
      if compare.partial or recluster_every:  # Eq. 6 is about all parameters.
        distance = tree.row_distances(models, tree.take(centers, new))
      # M-step (Eq. 9): the sum of the models of each center's clients ...
      averaged = trained._replace(params=models)
      sums = sums.add_started(averaged, own, weighting, centers)
      if temperature:
        distances = tree.squared_distances(models, centers)
        shares = em.responsibilities(distances, temperature)
        # Shares would not part centers that are equal.
        shares = jnp.where(hold, jax.nn.one_hot(own, num_clusters), shares)
        sums = sums.add_shares(averaged, shares, weighting, centers)
      else:
        sums = sums.add(averaged, new, distance, weighting, centers)
      # ... or those models themselves, where their mean is not what is wanted and they
      # are others than the trained ones, ...
      others = models if matched and aggregate is not None else None
      return (new, distance, others), sums

    def surely_stay(starts, squared, known):
      _, gaps, hold = known
      return hold | em.surely_nearest(squared, gaps[starts.choice])

    # Both steps for a chunk of clients whose own centers are surely the nearest.
    def all_stay(trained, starts, sums, add):
      own, weights = starts.choice, trained.weights(weighting)
      sums = sums.add_to_start(weights, own, trained.moved, add)
      return (own, trained.moved, None), sums

    # Local update (Algorithm 2): every client trains from its center. The two steps
    # follow for each chunk of clients as it finishes.
    trained = train(
      local,
      state,
      data,
      cohort,
      key,
      fold=e_and_m_step,
      known=(
        compare.known(compare.part(state.centers)),
        em.gaps(state.centers) if may_stay else None,
        held(state),
      ),
      sums=em.Sums.zeros(state.centers, track_objective),
      stays=Stays(surely_stay, all_stay) if may_stay else None,
      keep=kept,
      into=room_for_models(state, cohort),
    )
    new, distance, models = trained.folded
    sums = trained.sums
    new = jnp.where(trained.took_part(), new, tree.rows_of(state.assignment, cohort))
    # ... and their mean.
    if aggregate is None:
      means = mean_of(sums.clients, state.centers)
    else:
      counts = trained.took_part()
      stack = models if matched else trained.params
      means = aggregate(stack, new, counts, state.centers, local.mesh)
    centers, of_server = server_optimizers.move(
      server_optimizer, state.server, state.centers, means, sums.clients.weight > 0
    )
    value, parts = sums.objective(state.centers, centers), sums.by_step()
    if reseed_empty:
      distance = jnp.where(trained.took_part(), distance, -1.0)
      assignment, here = tree.with_rows(state.assignment, cohort, new), centers
      centers, assignment = reseed_empty_centers(
        centers, assignment, trained.params, distance, cohort, data
      )
      unmoved = tree.row_distances(centers, here) == 0
      of_server = server_optimizers.renew(server_optimizer, of_server, unmoved, centers)
      new = tree.rows_of(assignment, cohort)
    checks = state.checks and state.checks._replace(hold=jnp.bool_(False))
    state = state._replace(centers=centers, server=of_server, checks=checks)
    return finish(state, data, cohort, trained, new, value, parts)

  def recluster_round(state, data, cohort, key):
    found = recluster(
      local,
      state.centers,
      state.assignment,
      start_of(state, data, cohort, may_check=False),
      data,
      cohort,
      key,
      restarts=init_restarts,
      seeding=init_seeding,
      weighting=weighting,
      comparison=compare,
    )
    checks = state.checks.after(found.changed, recluster_every)
    # What an optimizer knows of a center is of no use elsewhere.
    of_server = server_optimizers.renew(
      server_optimizer, state.server, found.stays, found.centers
    )
    before, trained = tree.rows_of(state.assignment, cohort), found.trained
    new = jnp.where(trained.took_part(), found.assignment, before)
    state = state._replace(centers=found.centers, server=of_server, checks=checks)
    value, parts = found.objective, (found.objective,) * 2 if track_objective else None
    return finish(state, data, cohort, trained, new, value, parts)

  def finish(state, data, cohort, trained, new, value, parts):
    """The state and the report of a round, from the cohort's new clusters [S]."""
    assignment = tree.with_rows(state.assignment, cohort, new)
    info = round_info(
      trained, num_clusters, value, state.assignment, assignment, data, parts
    )
    rounds, seen = state.rounds + 1, state.seen
    if seen is not None:
      now = jnp.where(trained.took_part(), rounds, tree.rows_of(seen, cohort))
      seen = tree.with_rows(seen, cohort, now)
    return state._replace(
      assignment=assignment,
      rounds=rounds,
      client_params=tree.with_rows(state.client_params, cohort, trained.params),
      seen=seen,
    ), info

  def step(state, data, cohort, key):
    if not recluster_every:
      return em_round(state, data, cohort, key)
    due = state.rounds + 1 == state.checks.due
    return jax.lax.cond(due, recluster_round, em_round, state, data, cohort, key)

  def deployed(state, data):
    if not late_joins:
      return ClientModels(state.centers, state.assignment)
    nearest = least_loss(local, state.centers, data, everyone(data))
    return ClientModels(
      state.centers, jnp.where(state.seen < 0, nearest, state.assignment)
    )

  return Algorithm(local, init, step, deployed, train=train)
