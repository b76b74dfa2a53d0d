"""FedNova: divides updates by each client's number of local steps."""

import jax
import jax.numpy as jnp

from fesem_jax.algorithms.common import global_model, stragglers
from fesem_jax.algorithms.common.global_model import GlobalState
from fesem_jax.core import batching, sums, traffic
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.made_by import recorded
from fesem_jax.training import step_lengths
from fesem_jax.training.trained import Reduction
from fesem_jax.utils.ranges import Fraction


@recorded
def fed_nova(local: LocalTraining, *, straggler_fraction: Fraction = 0.0) -> Algorithm:
  """Builds FedNova (Wang et al., "Tackling the Objective Inconsistency Problem in
  Heterogeneous Federated Optimization", NeurIPS 2020).

    w_i   <- T_i steps of SGD from x on client i       for i in the cohort
    d_i   <- (x - w_i) / (eta a_i)
    x     <- x - (sum_i alpha_i a_i) eta sum_i alpha_i d_i

  where alpha_i = n_i / sum n_j, and a_i is the sum of the weights that the T_i
  gradients have in x - w_i: T_i, or sum over t = 1 .. T_i of (1 - rho^t) / (1 - rho)
  with a momentum of rho. Where all a_i are equal, FedNova is FedAvg.

  Args:
    local: settings of local training. The weights include a schedule over local steps.
    straggler_fraction: probability that a client runs only 1 to E epochs in a round.

  Raises:
    UserError: unless the local optimizer is SGD, with or without momentum, which begins
      anew in each round.
  """
  local.check_no_statistics('fed_nova')
  step_lengths.check_sums_of_gradients(local)

  def train(local, state, data, cohort, key, reduction):
    epochs = stragglers.epochs(local, data, cohort, key, straggler_fraction)
    return global_model.train(local, state, data, cohort, key, reduction, epochs=epochs)

  def normalize(trained, starts, total, lengths):
    client_lengths = lengths[trained.steps]
    divisors = jnp.where(client_lengths > 0, client_lengths, 1.0)
    weights = trained.weights('by_examples') / divisors
    return None, sums.add_to_one(total, trained.params, weights, starts.shared)

  def step(state, data, cohort, key):
    x = state.params
    # eta a_i by the number of steps.
    most = batching.most_steps(local.schedule, data.max_examples)
    lengths = step_lengths.lengths(local, most)
    none = sums.no_sums(x)
    reduction = Reduction(normalize, none, broadcast=lengths, keep=False)
    trained = train(local, state, data, cohort, key, reduction)
    weights = trained.weights('by_examples')
    total = sums.or_one(sums.total(weights))
    mean_length = sums.total(weights * lengths[trained.steps]) / total

    def move(x, change):
      return x + mean_length * change / total

    return GlobalState(jax.tree.map(move, x, trained.sums.params)), trained.info()

  size = traffic.bytes_of_model(local)
  sent = traffic.same_for_all(size, size + traffic.NUMBER)._replace(extras=None)
  init = global_model.init(local)
  return Algorithm(local, init, step, global_model.deployed, train=train, traffic=sent)
