"""The rounds of every method in float64 NumPy, written from the papers' equations.

A round is a function of the clients that take part and of the method's state: a dict of
float64 arrays with the state's names, where a stack of models [K, ...] is [K, P]. It
changes the state, and returns what it expects of the round's report, with `deployed`
[M, P] where clients deploy other models than their centers.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from scipy import linalg, stats
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, davies_bouldin_score

from fesem_jax.algorithms.wrappers.reclustering import Checks
from fesem_jax.core import prng_streams
from fesem_jax.server import optimizers as server_optimizers
from tests.support import draws, helpers, reference
from tests.support.cluster_steps import fed_drift_step, stocfl_merged
from tests.support.methods import federation, initial, unflatten

RATE, HIDDEN = 0.1, (4,)
# Some of them drop out; place 8 of the first is empty.
COHORTS = ((0, 3, 1, 8), (3, 4, 1, 0), (4, 1, 0, 2))
NOBODY = (8, 8, 8, 8)


def two_absent():
  """The federation of `methods`, and two clients without examples."""
  return federation().reorder(np.arange(6), num_clients=8)


class Clients:
  """The clients of a round, which train in float64.

  Attributes:
    data: training split.
    local: how clients train.
    key: of the round.
    number: of the round, from 1.
    last: whether it is the last one.
    drawn: clients of the cohort that have examples.
    ids: those of them that do not drop out.
    everyone: whether the cohort is of all clients.
    like: a reference model.
    after: the method's state after the round, for what is drawn at random.
    memory: of the server, for all rounds.
  """

  def __init__(self, **fields: Any):
    vars(self).update(fields)
    self.sizes = np.diff(np.asarray(self.data.offsets))

  def drops_out(self, i):
    rate = self.local.dropout_rate
    return rate > 0 and draws.drops_out(self.key, self.data, i, rate)

  def model(self, w):
    return unflatten(w, self.like)

  def gradient(self, w, x, y, *factors):
    """Loss and gradient [P] of a batch."""
    loss, slope = reference.loss_and_gradient(self.model(w), x, y, *factors)
    return loss, reference.flat(slope)

  def on_all_examples(self, w, i):
    """Loss and gradient [P] of client i."""
    return self.gradient(w, *self.data.client(i))

  def losses(self, models, ids):
    """[S, K] loss of each model of each client."""
    return reference.losses([self.model(w) for w in models], self.data, ids)

  def batches(self, i, key=None, **schedule):
    schedule = self.local.schedule._replace(**schedule)
    return helpers.batches(self.data, schedule, i, self.key if key is None else key)

  def epochs(self, i, fraction):
    """Of client i, a straggler with this probability."""
    most = self.local.schedule.epochs
    return draws.epochs_of(self.key, self.data, i, fraction, most)

  def steps(self, i, values, step, **schedule):
    """Values after `step(values, x, y) -> values, loss` on each batch; mean loss."""
    losses, counts = [], []
    for x, y in self.batches(i, **schedule):
      values, loss = step(values, x, y)
      losses.append(loss)
      counts.append(len(y))
    return values, np.average(losses, weights=counts)

  def sgd(self, i, w, more=lambda w: 0.0, mask=1.0, **schedule):
    """Client i's model [P] and mean loss; `more` is added to the loss' gradient."""

    def step(w, x, y):
      loss, slope = self.gradient(w, x, y)
      return w - RATE * mask * (slope + more(w)), loss

    return self.steps(i, w, step, **schedule)

  def collect(self, train):
    """[S, P] what `train(i)` finds for each client, and the losses."""
    rows, losses = zip(*map(train, self.ids), strict=True)
    return np.stack(rows), losses

  def weights(self, weighting):
    by_examples = weighting == 'by_examples'
    return self.sizes[self.ids] if by_examples else np.ones(len(self.ids))

  def mean(self, rows, weighting='by_examples'):
    return np.average(rows, axis=0, weights=self.weights(weighting))

  def report(self, losses, passes=1):
    steps = sum(len(self.batches(i)) for i in self.ids)
    loss = np.average(losses, weights=self.sizes[self.ids])
    return {'train_loss': loss, 'steps': passes * steps}

  def average(
    self, state, train, weighting='by_examples', server=None, passes=1, mean=None
  ):
    """A round whose server averages what `train(i, x)` sends, with its loss."""
    x = state['params'][0]
    rows, losses = self.collect(lambda i: train(i, x))
    mean = mean(rows) if mean else self.mean(rows, weighting)
    state['params'] = np.stack([mean if server is None else server(x, mean)])
    return self.report(losses, passes)

  def average_clusters(self, state, assignment, weighting='by_examples', mean=None):
    """A round of clients that train from their centers `assignment` [M]."""
    centers, before = state['centers'], state.get('assignment', assignment).astype(int)
    points, losses = self.collect(lambda i: self.sgd(i, centers[assignment[i]]))
    self.points = points
    state['centers'] = new = reference.means(
      points, assignment[self.ids], self.weights(weighting), centers
    )
    if mean is not None:
      for k in set(assignment[self.ids]):
        new[k] = mean(points[assignment[self.ids] == k])
    return self.report(losses) | self.clusters(
      points, assignment, new, before, weighting
    )

  def clusters(self, points, assignment, centers, before, weighting):
    """What a round reports of clusters."""
    exist, weights = self.sizes > 0, self.weights(weighting)
    return {
      'objective': reference.objective(points, centers, assignment[self.ids], weights),
      'moved': (assignment != before)[exist].sum(),
      'sizes': np.bincount(assignment[exist], minlength=len(centers))[: len(centers)],
      'deployed': centers[np.minimum(assignment, len(centers) - 1)],
    }


class Reference(NamedTuple):
  """A method with options, and its round.

  Attributes:
    name: of the method.
    options: of the method.
    round: `Clients`, state, **options -> expected report; see above.
    training: options of `helpers.local`.
    changes: fields of `LocalTraining`.
    num_rounds: how many rounds are compared.
    cohorts: of the rounds in turn.
    dropout: whether clients drop out.
    data_of: number of the round -> federation; None is `two_absent`.
    layout: of the examples on two devices.
    start: algorithm, data -> its first state.
    atol: of numbers near 0, by field; 1e-5 elsewhere.
  """

  name: str
  options: dict[str, Any]
  round: Callable
  training: dict[str, Any] = {}  # noqa: RUF012
  changes: dict[str, Any] = {}  # noqa: RUF012
  num_rounds: int = 3
  cohorts: tuple[tuple[int, ...], ...] = COHORTS
  dropout: bool = True
  data_of: Callable | None = None
  layout: str = 'sharded'
  start: Callable = initial
  atol: dict[str, float] = {}  # noqa: RUF012

  def __str__(self):
    optimizers = {id(optimizer): name for name, optimizer in OPTIMIZERS.items()}
    values = [*self.options.values(), *self.training.values(), *self.changes.values()]
    plain = [optimizers.get(id(v), v) for v in values]
    plain = [str(v) for v in plain if isinstance(v, str | int | float)]
    return '-'.join([self.name, *plain])


REFERENCES: list[Reference] = []


def references(name, *variants, **fields):
  """Registers a round for a method with each of some options."""

  def register(function):
    REFERENCES.extend(Reference(name, o, function, **fields) for o in variants or [{}])
    return function

  return register


# One model.


@references('fed_avg', {}, {'weighting': 'uniform'}, {'aggregation': 'median'})
@references('fed_prox', {'prox_mu': 0.8})
@references(
  'fed_prox', {'prox_mu': 0.8, 'straggler_fraction': 0.5}, training={'epochs': 4}
)
@references('fed_dist', {'server_learning_rate': 0.3})
@references('fed_dws', {'server_learning_rate': 0.3})
def fed_avg(
  clients, state, weighting=None, prox_mu=0.0, server_learning_rate=1.0,
  straggler_fraction=0.0, aggregation='mean',
):  # fmt: skip
  names = {'fed_dist': 'uniform'}
  weighting = weighting or names.get(clients.name, 'by_examples')
  epochs = {i: clients.epochs(i, straggler_fraction) for i in clients.ids}
  report = clients.average(
    state,
    lambda i, x: clients.sgd(i, x, lambda w: prox_mu * (w - x), epochs=epochs[i]),
    weighting,
    lambda x, mean: x + server_learning_rate * (mean - x),
    mean=(lambda rows: np.median(rows, axis=0)) if aggregation == 'median' else None,
  )
  steps = sum(len(clients.batches(i, epochs=n)) for i, n in epochs.items())
  return report | {'steps': steps}


@references('fed_sgd')
def fed_sgd(clients, state):
  def train(i, x):
    loss, slope = clients.on_all_examples(x, i)
    return x - RATE * slope, loss

  return clients.average(state, train) | {'steps': len(clients.ids)}


@references('centralized', training={'batch_size': 4})
@references('centralized', training={'batch_size': 0})
def centralized(clients, state):
  width = clients.local.schedule.batch_size or clients.sizes.max()
  steps = sum(2 * -(-clients.sizes[i] // width) for i in clients.ids)
  x, y = np.asarray(clients.data.x), np.asarray(clients.data.y)
  batches, key = [], jax.random.fold_in(clients.key, 0)
  for epoch in range(steps):
    order = helpers.order_of(key, epoch, len(y))
    parts = [order[at : at + width] for at in range(0, len(y), width)]
    batches += [(x[rows], y[rows]) for rows in parts]
  model = clients.model(state['params'][0])
  model, loss = reference.local_sgd(model, batches[:steps], RATE)
  state['params'] = reference.flat(model)[None]
  return {'train_loss': loss, 'steps': steps}


BETA1, BETA2, TAU = 0.8, 0.9, 0.05
OPTIMIZERS = {
  'momentum': server_optimizers.momentum(0.3, BETA1),
  'adagrad': server_optimizers.adagrad(0.3, BETA1, TAU),
  'adam': server_optimizers.adam(0.3, BETA1, BETA2, TAU),
  'yogi': server_optimizers.yogi(0.3, BETA1, BETA2, TAU),
}


def server_step(memory, optimizer, x, mean):
  """Reddi et al., Algorithm 2; `memory` has m and v."""
  (name,) = (name for name, other in OPTIMIZERS.items() if other is optimizer)
  m, v = memory.get('m', 0.0), memory.get('v', TAU**2)
  delta = mean - x
  square = delta**2
  share = 1.0 if name == 'momentum' else 1 - BETA1
  memory['m'] = m = BETA1 * m + share * delta
  if name == 'momentum':
    return x + 0.3 * m
  memory['v'] = v = {
    'adagrad': v + square,
    'adam': BETA2 * v + (1 - BETA2) * square,
    'yogi': v - (1 - BETA2) * square * np.sign(v - square),
  }[name]
  return x + 0.3 * m / (np.sqrt(v) + TAU)


@references('fed_opt', *[{'server_optimizer': o} for o in OPTIMIZERS.values()])
@references(
  'fed_avg', {'server_optimizer': OPTIMIZERS['momentum'], 'aggregation': 'median'}
)
def fed_opt(clients, state, server_optimizer, aggregation='mean'):
  def server(x, mean):
    return server_step(clients.memory, server_optimizer, x, mean)

  mean = (lambda rows: np.median(rows, axis=0)) if aggregation == 'median' else None
  return clients.average(state, clients.sgd, server=server, mean=mean)


def length_of_steps(steps, rho):
  """|a_i|_1 of FedNova's paper, Section 4."""
  if rho == 0:
    return steps
  return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


@references('fed_nova', training={'optimizer': optax.sgd(RATE)})
@references('fed_nova', training={'optimizer': optax.sgd(RATE, 0.9)})
def fed_nova(clients, state):
  x = state['params'][0]
  rho = 0.9 if jax.tree.leaves(clients.local.optimizer.init(x)) else 0.0
  lengths = [length_of_steps(len(clients.batches(i)), rho) for i in clients.ids]

  def step(values, *batch):
    w, velocity = values
    loss, slope = clients.gradient(w, *batch)
    velocity = rho * velocity + slope
    return (w - RATE * velocity, velocity), loss

  def train(i):
    (w, _), loss = clients.steps(i, (x, 0 * x), step)
    return w - x, loss

  changes, losses = clients.collect(train)
  changes /= np.array(lengths)[:, None]
  assert clients.number > 1 or min(lengths) < max(lengths)  # Else FedAvg would do.
  state['params'] = (x + clients.mean(lengths) * clients.mean(changes))[None]
  return clients.report(losses)


@references('scaffold', {'server_learning_rate': 0.5}, atol={'client_controls': 2e-5})
def scaffold(clients, state, server_learning_rate):
  x, c = state['params'][0], state['control'][0]
  personal = state['client_controls']
  models, losses = clients.collect(
    lambda i: clients.sgd(i, x, lambda w: c - personal[i])
  )
  lengths = np.array([len(clients.batches(i)) * RATE for i in clients.ids])
  changes = -c + (x - models) / lengths[:, None]
  personal[clients.ids] += changes
  state['params'] = (x + server_learning_rate * (models.mean(axis=0) - x))[None]
  state['control'] = (c + changes.sum(axis=0) / (clients.sizes > 0).sum())[None]
  assert np.abs(personal).max() > 0.05  # Later rounds are corrected.
  return clients.report(losses)


@references('fed_dyn', {'dyn_alpha': 0.3}, atol={'params': 5e-5, 'deployed': 5e-5})
def fed_dyn(clients, state, dyn_alpha):
  x, h, personal = state['params'][0], state['correction'][0], state['client_gradients']
  models, losses = clients.collect(
    lambda i: clients.sgd(i, x, lambda w: dyn_alpha * (w - x) - personal[i])
  )
  personal[clients.ids] -= dyn_alpha * (models - x)
  h = h - dyn_alpha / (clients.sizes > 0).sum() * (models - x).sum(axis=0)
  state['correction'] = h[None]
  state['params'] = (models.mean(axis=0) - h / dyn_alpha)[None]
  return clients.report(losses)


@references('fed_dane', {'prox_mu': 0.4, 'same_cohort': True})
@references('fed_dane', {'prox_mu': 0.4}, layout='replicated')  # Else draws differ.
def fed_dane(clients, state, prox_mu, same_cohort=False):
  first, (x,) = clients.drawn, state['params']
  if not (same_cohort or clients.everyone):
    first = draws.first_cohort(clients.key, clients.data, len(first))
    assert set(first) != set(clients.drawn)
  first = [i for i in first if not clients.drops_out(i)]
  personal = {i: clients.on_all_examples(x, i)[1] for i in {*first, *clients.ids}}
  g = np.mean([personal[i] for i in first], axis=0)

  def train(i, x):
    return clients.sgd(i, x, lambda w: g - personal[i] + prox_mu * (w - x))

  return clients.average(state, train, 'uniform')


# A model for each client.


@references('non_fed')
def non_fed(clients, state):
  personal = state['client_params']
  personal[clients.ids], losses = clients.collect(lambda i: clients.sgd(i, personal[i]))
  return clients.report(losses) | {'deployed': personal}


@references('ditto', {'ditto_lambda': 0.7})
def ditto(clients, state, ditto_lambda):
  personal = state['client_params']

  def train(i, x):
    personal[i], loss = clients.sgd(i, personal[i], lambda w: ditto_lambda * (w - x))
    return clients.sgd(i, x)[0], loss

  return clients.average(state, train, passes=2) | {'deployed': personal}


@references('apfl', {'apfl_alpha': 0.7})
def apfl(clients, state, apfl_alpha):
  personal, alphas = state['client_params'], state['client_alphas']
  assert clients.number > 1 or np.allclose(alphas, apfl_alpha)

  def step(values, *batch):
    w, v, alpha = values
    loss, mix_slope = clients.gradient(alpha * v + (1 - alpha) * w, *batch)
    _, w_slope = clients.gradient(w, *batch)
    slope = mix_slope @ (v - w)
    w, v = w - RATE * w_slope, v - RATE * alpha * mix_slope
    return (w, v, np.clip(alpha - RATE * slope, 0, 1)), loss

  def train(i, w):
    (w, personal[i], alphas[i]), loss = clients.steps(
      i, (w, personal[i], alphas[i]), step
    )
    return w, loss

  report = clients.average(state, train, passes=2)
  assert np.std(alphas[:6]) > 1e-4
  mix = alphas[:, None]
  return report | {'deployed': mix * personal + (1 - mix) * state['params']}


P_FED_ME = {
  'pfedme_lambda': 2.0, 'inner_steps': 3, 'inner_learning_rate': 0.2,
  'server_learning_rate': 0.8,
}  # fmt: skip


@references('p_fed_me', P_FED_ME, {**P_FED_ME, 'weighting': 'by_examples'})
def p_fed_me(clients, state, weighting='uniform', **options):
  personal, pull = state['client_params'], options['pfedme_lambda']

  def step(values, *batch):
    w, theta = values
    first, _ = clients.gradient(theta, *batch)
    for _ in range(options['inner_steps']):
      slope = clients.gradient(theta, *batch)[1] + pull * (theta - w)
      theta = theta - options['inner_learning_rate'] * slope
    return (w - RATE * pull * (w - theta), theta), first

  def train(i, x):
    (w, personal[i]), loss = clients.steps(i, (x, x), step)
    return w, loss

  def server(x, mean):
    return x + options['server_learning_rate'] * (mean - x)

  report = clients.average(state, train, weighting, server, passes=3)
  return report | {'deployed': personal}


# Gradients of ReLU jump, so that differences along them depend on their length.
@references(
  'per_fed_avg',
  {'meta_gradient': 'first_order', 'adaptation_rate': 0.4},
  training={'batch_size': 2, 'epochs': 3},
)
@references(
  'per_fed_avg',
  {'meta_gradient': 'hessian_free', 'adaptation_rate': 0.4},
  training={'batch_size': 2, 'epochs': 3, 'hidden': ()},
)
def per_fed_avg(clients, state, meta_gradient, adaptation_rate):
  count, gradients = 3 if meta_gradient == 'hessian_free' else 2, 0

  def train(i, w):
    nonlocal gradients
    batches, losses = clients.batches(i), []
    for at in range(0, len(batches), count):
      (inner, *more), before = batches[at : at + count], w
      loss, slope = clients.gradient(w, *inner)
      losses.append(loss)
      for batch in more[:1]:
        loss, g = clients.gradient(w - adaptation_rate * slope, *batch)
        losses.append(loss)
        w = before - RATE * g
      for batch in more[1:]:  # About the Hessian times g.
        small = 0.01 * g
        (a, ahead), (b, behind) = (
          clients.gradient(before + step, *batch) for step in (small, -small)
        )
        losses.append((a + b) / 2)
        w = before - RATE * (g - adaptation_rate * (ahead - behind) / 0.02)
      if len(more) < count - 1:  # A step needs all of its batches.
        w = before
      gradients += 1 + len(more) + len(more[1:])
    return w, np.average(losses, weights=[len(y) for _, y in batches])

  report = clients.average(state, train, 'uniform')
  (x,) = state['params']
  adapted = [x - adaptation_rate * clients.on_all_examples(x, i)[1] for i in range(6)]
  return report | {'steps': gradients, 'deployed': np.stack(adapted)}


def representation(model, x):
  """[B, F] what the last layer gets, and its lengths [B, 1]; 1 of zeros."""
  kernel, bias = model[0]
  z = np.maximum(x @ kernel + bias, 0)
  length = np.linalg.norm(z, axis=1, keepdims=True)
  return z, np.where(length > 0, length, 1)


def contrast(model, sent, last, x, temperature):
  """Mean of -log(p / (p + q)) over a batch, and its gradient by the first layer."""
  z, length = representation(model, x)
  unit, like, unlike = (
    a / b for a, b in (representation(m, x) for m in (model, sent, last))
  )
  to_sent, to_last = ((unit * u).sum(axis=1, keepdims=True) for u in (like, unlike))
  p, q = np.exp(to_sent / temperature), np.exp(to_last / temperature)
  # The gradient of the cosine of z and u is (u - cos u_z) / |z|.
  toward = (unlike - to_last * unit) - (like - to_sent * unit)
  delta = q / (p + q) / temperature * toward / length * (z > 0) / len(x)
  return -np.log(p / (p + q)).mean(), [(x.T @ delta, delta.sum(axis=0))]


@references(
  'moon', {'moon_mu': 2.0, 'moon_temperature': 0.4}, training={'hidden': (8,)}
)
def moon(clients, state, moon_mu, moon_temperature):
  personal = state['client_params']

  def train(i, x):
    sent, last = clients.model(x), clients.model(personal[i])

    def step(w, inputs, y):
      loss, slope = clients.gradient(w, inputs, y)
      inputs = inputs.astype(np.float64)
      more, first = contrast(clients.model(w), sent, last, inputs, moon_temperature)
      first = reference.flat(first)
      slope[: first.size] += moon_mu * first
      return w - RATE * slope, loss + moon_mu * more

    personal[i], loss = clients.steps(i, x, step)
    return personal[i], loss

  return clients.average(state, train)


@references('fed_amp', {'amp_lambda': 0.3, 'amp_sigma': 0.5})
def fed_amp(clients, state, amp_lambda, amp_sigma):
  personal = state['client_params']
  before, losses = personal.copy(), []
  alpha = amp_sigma / max(len(clients.drawn) - 1, 1)
  for i in clients.ids:
    u, rest = np.zeros_like(personal[i]), 1.0
    for j in clients.drawn:
      if i != j:
        distance = ((before[i] - before[j]) ** 2).sum()
        xi = alpha * np.exp(-distance / amp_sigma) / amp_sigma
        u, rest = u + xi * before[j], rest - xi
    u = u + rest * before[i]
    clients.memory['apart'] = max(
      clients.memory.get('apart', 0), np.abs(u - before[i]).max()
    )
    personal[i], loss = clients.sgd(
      i, personal[i], lambda w, u=u: amp_lambda / alpha * (w - u)
    )
    losses.append(loss)
  assert not clients.last or clients.memory['apart'] > 0.005
  return clients.report(losses) | {'deployed': personal}


def toss(key, share):
  """Whether the next round of L2GD aggregates."""
  coin_key = jax.random.fold_in(key, prng_streams.NEXT_ROUND)
  return bool(jax.random.bernoulli(coin_key, share))


L2GD = {'l2gd_lambda': 3.0, 'aggregation_probability': 0.4}


@references('l2gd', L2GD, training={'batch_size': 0, 'steps': 1}, num_rounds=6)
@references('l2gd', L2GD, num_rounds=6)
def l2gd(clients, state, l2gd_lambda, aggregation_probability):
  personal, p, ids = state['client_params'], aggregation_probability, clients.ids
  together = state['aggregates']
  assert clients.number > 1 or together == toss(jax.random.key(0), p)
  state['aggregates'] = toss(clients.key, p)
  clients.memory['together'] = [*clients.memory.get('together', []), together]
  assert not clients.last or 1 < sum(clients.memory['together'][1:]) < 5
  if not together:
    return non_fed(clients, state)
  losses = [clients.on_all_examples(personal[i], i)[0] for i in ids]
  # With alpha = n (1 - p) eta: alpha lambda / (n p).
  theta = (1 - p) * RATE * l2gd_lambda / p
  personal[ids] = (1 - theta) * personal[ids] + theta * personal[ids].mean(axis=0)
  return clients.report(losses, passes=0) | {'deployed': personal}


# Layers that stay with their clients.


def personal_layers(clients, state, train, weighting='by_examples'):
  """A round of body [1, B] and heads [M, H]; `train(i, w) -> w, loss`."""
  (body,), heads = state['body'], state['heads']
  rows, losses = clients.collect(lambda i: train(i, np.append(body, heads[i])))
  heads[clients.ids] = rows[:, body.size :]
  rows = rows[:, : body.size]
  state['body'] = clients.mean(rows, weighting)[None]
  deployed = [np.append(state['body'], head) for head in heads]
  return clients.report(losses) | {'deployed': np.stack(deployed)}


def only(clients, layers):
  """[P] bool: parameters of these layers."""
  flags = [
    np.full(part.size, k in layers)
    for k, layer in enumerate(clients.like)
    for part in layer
  ]
  return np.concatenate(flags)


TWO_LAYERS = {'hidden': (5, 4)}


@references('fed_per', training=TWO_LAYERS)
def fed_per(clients, state):
  return personal_layers(clients, state, clients.sgd)


@references('fed_rep', {'head_epochs': 3}, training=TWO_LAYERS)
def fed_rep(clients, state, head_epochs):
  head = only(clients, [len(clients.like) - 1])

  def train(i, w):
    w, _ = clients.sgd(i, w, mask=head, epochs=head_epochs)
    return clients.sgd(i, w, mask=~head)

  report = personal_layers(clients, state, train, 'uniform')
  more = sum(len(clients.batches(i, epochs=head_epochs)) for i in clients.ids)
  return {'steps': report['steps'] + more, 'deployed': report['deployed']}


@references('fed_babu', {'head_layers': ('logits',)}, training=TWO_LAYERS)
@references(
  'fed_babu',
  {'head_layers': ('dense1', 'logits')},
  training=TWO_LAYERS,
  changes={'shared_start': 'on'},
)
def fed_babu(clients, state, head_layers):
  body = only(clients, range(len(clients.like) - len(head_layers)))
  before = state['params'].copy()
  report = clients.average(state, lambda i, x: clients.sgd(i, x, mask=body))
  exact = clients.after['params'][0]
  np.testing.assert_array_equal(exact[~body], before[0, ~body])
  return report


@references('lg_fed_avg', training=TWO_LAYERS)
def lg_fed_avg(clients, state):
  """Bodies stay, the head is shared."""
  (head,), bodies = state['body'], state['heads']
  rows, losses = clients.collect(lambda i: clients.sgd(i, np.append(bodies[i], head)))
  bodies[clients.ids] = rows[:, : -head.size]
  state['body'] = clients.mean(rows[:, -head.size :])[None]
  deployed = [np.append(row, state['body']) for row in bodies]
  return clients.report(losses) | {'deployed': np.stack(deployed)}


@references('fed_bn', {'norm_layers': ['**/bias']}, training=TWO_LAYERS)
def fed_bn(clients, state, norm_layers):
  """Biases stay, kernels are shared."""
  del norm_layers
  flags = [np.full(p.size, p.ndim == 1) for layer in clients.like for p in layer]
  bias = np.concatenate(flags)

  def joined(i):
    w = np.empty(bias.size)
    w[bias], w[~bias] = state['heads'][i], state['body'][0]
    return w

  rows, losses = clients.collect(lambda i: clients.sgd(i, joined(i)))
  state['heads'][clients.ids] = rows[:, bias]
  state['body'] = clients.mean(rows[:, ~bias], 'uniform')[None]
  deployed = [joined(i) for i in range(len(clients.sizes))]
  return clients.report(losses) | {'deployed': np.stack(deployed)}


ALA = {'ala_rate': 20.0}


@references('fed_ala', ALA, training={'batch_size': 2}, num_rounds=4)
# Weights are learned in epochs even where models are trained in steps.
@references('fed_ala', ALA, training={'batch_size': 2, 'steps': 4}, num_rounds=4)
def fed_ala(clients, state, ala_rate):
  heads, weights, learned = state['heads'], state['head_weights'], state['learned']
  assert clients.number > 1 or (weights == 1).all()
  size, steps = heads.shape[1], 0

  def mixed(w, i):
    w = w.copy()
    w[-size:] = heads[i] + (w[-size:] - heads[i]) * weights[i]
    return w

  def train(i, w):
    nonlocal steps
    if state['rounds'] > 0:
      per_epoch = -(-clients.sizes[i] // 2)
      most = int(np.ceil(0.8 * per_epoch))
      batches = clients.batches(i, epochs=1 if learned[i] else 10, steps=0)
      for number, batch in enumerate(batches):
        if number % per_epoch < most:
          slope = clients.gradient(mixed(w, i), *batch)[1][-size:]
          change = ala_rate * (w[-size:] - heads[i]) * slope
          weights[i] = np.clip(weights[i] - change, 0, 1)
          steps += 1
      learned[i] = True
    model, loss = clients.sgd(i, mixed(w, i))
    heads[i] = model[-size:]
    return model, loss

  report = clients.average(state, train)
  state['rounds'] += 1
  assert 0 <= weights.min() <= weights.max() == 1
  assert not clients.last or weights.min() < 0.9
  report['steps'] += steps
  deployed = [mixed(state['params'][0], i) for i in range(len(heads))]
  return report | {'deployed': np.stack(deployed)}


# A center for each cluster.


def far_apart(algorithm, data):
  """The centers of the oracle, the second one another random model."""
  state = initial(algorithm, data)
  np.testing.assert_array_equal(*state.centers['logits']['kernel'])  # One model.
  return state._replace(centers=helpers.first_models(algorithm.local, 2, 1))


def near_centers(algorithm, data):
  """Clusters of four clients and of two around two near models; else zeros."""
  shapes = jax.eval_shape(algorithm.init, jax.random.key(0), data)
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  assignment = np.array([0, 1, 0, 1, 0, 0, 0, 0], np.int32)
  models = jax.device_get(helpers.first_models(algorithm.local, 2, 1))
  near = np.float32([[1, 0], [0.99, 0.01]])
  centers = jax.tree.map(lambda m: np.tensordot(near, m, 1), models)
  return zeros._replace(centers=centers, assignment=assignment)


@references(
  'oracle', {'weighting': 'uniform'}, {'weighting': 'by_examples'}, start=far_apart
)
def oracle(clients, state, weighting):
  assignment = np.array([0, 1, 0, 1, 0, 1, 0, 0])
  return clients.average_clusters(state, assignment, weighting)


ROBUST = {'num_clusters': 2}


@references(
  'robust',
  {'aggregation': 'trimmed_mean(0.25)', **ROBUST},
  {'aggregation': 'median', **ROBUST},
  cohorts=((0, 2, 4, 5), (5, 2, 4, 0), (0, 1, 3, 5)),
  dropout=False,  # Else clusters are too small to trim.
  start=near_centers,
)
def robust(clients, state, aggregation, **options):
  del options

  def mean(points):
    if aggregation == 'median':
      return np.median(points, axis=0)
    return stats.trim_mean(points, 0.25)

  assignment = state['assignment'].astype(int)
  return clients.average_clusters(state, assignment, 'uniform', mean=mean)


@references('pacfl', {'num_clusters': 2, 'num_vectors': 1}, start=near_centers)
@references('fed_group', {'num_clusters': 2}, start=near_centers)
def fixed_clusters(clients, state, **options):
  del options
  assignment = state['assignment'].astype(int)
  return clients.average_clusters(state, assignment)


@references(
  'hypo_cluster',
  {'num_clusters': 2, 'weighting': 'by_examples', 'init_restarts': 3},
  start=near_centers,
)
def hypo_cluster(clients, state, weighting, **options):
  # The mean over all of a cluster's clients: public code applies only the first.
  del options
  assignment = state['assignment'].astype(int).copy()
  losses = clients.losses(state['centers'], clients.ids)
  assignment[clients.ids] = losses.argmin(axis=1)
  report = clients.average_clusters(state, assignment, weighting)
  state['assignment'] = assignment
  state['rounds'] += 1
  now = clients.losses(state['centers'], range(6)).argmin(axis=1)
  return report | {'deployed': state['centers'][now]}


def near_centers_of_yogi(algorithm, data):
  state = near_centers(algorithm, data)
  server = server_optimizers.init(OPTIMIZERS['yogi'], state.centers)
  return state._replace(server=server)


FESEM = {'num_clusters': 2, 'prox_lambda': 0.2}


@references(
  'fesem',
  FESEM,
  {**FESEM, 'client_state': 'streamed'},
  num_rounds=4,
  start=near_centers,
)
@references(
  'fesem', {**FESEM, 'server_optimizer': OPTIMIZERS['yogi']}, start=near_centers_of_yogi
)
@references(
  'fesem',
  {**FESEM, 'prox_weighting': 'paper', 'weighting': 'by_examples'},
  changes={'shared_start': 'on'},
  start=near_centers,
)
def fesem(
  clients, state, prox_lambda, prox_weighting='uniform', weighting='uniform',
  server_optimizer=None, keep=False, **options,
):  # fmt: skip
  """A pass of the loop of Algorithm 1."""
  del options
  centers, before = state['centers'], state['assignment'].astype(int)
  prox = np.full(8, prox_lambda)
  if prox_weighting == 'paper':
    prox[:6] = reference.paper_penalty(prox_lambda, clients.sizes[:6])

  def train(i):  # Eq. 7
    start = centers[before[i]]
    return clients.sgd(i, start, lambda w: 2 * prox[i] * (w - start))

  (points, losses), weights = clients.collect(train), clients.weights(weighting)
  assignment = before.copy()
  if not keep:
    assignment[clients.ids] = reference.nearest(points, centers)  # Eq. 8
  new = reference.means(points, assignment[clients.ids], weights, centers)  # Eq. 9
  report = clients.report(losses)
  report |= clients.clusters(points, assignment, new, before, weighting)
  if server_optimizer is not None:
    for k in set(assignment[clients.ids]):
      memory = clients.memory.setdefault(k, {})
      new[k] = server_step(memory, server_optimizer, centers[k], new[k])
    report |= clients.clusters(points, assignment, new, before, weighting)
  state['centers'], state['assignment'] = new, assignment
  if 'client_params' in state:
    for i in clients.drawn:  # Of those that drop out, the start.
      state['client_params'][i] = centers[before[i]]
    state['client_params'][clients.ids] = points
  state['rounds'] += 1
  clients.memory['moves'] = (
    clients.memory.get('moves', 0) + (assignment != before).sum()
  )
  assert not clients.last or clients.memory['moves'] > 0
  return report


def near_centers_to_check(algorithm, data):
  """Two clusters that the third round checks."""
  shapes = jax.eval_shape(algorithm.init, jax.random.key(0), data)
  plain = algorithm._replace(init=lambda *_: shapes.method)
  return shapes._replace(method=near_centers(plain, data), checks=Checks.first(3))


@references(
  'fesem',
  {**FESEM, 'recluster_every': 3, 'weighting': 'by_examples'},
  num_rounds=8,
  start=near_centers_to_check,
  cohorts=((0, 3, 1, 5), (4, 1, 5, 2), NOBODY, (3, 4, 1, 0), NOBODY, (0, 3, 1, 5)),
)
def reclustered(clients, state, recluster_every, **options):
  """Clusters anew from a common start where that is due, and holds what is new."""
  method, checks, ids = state['method'], state['checks'], clients.ids
  is_due, memory = method['rounds'] + 1 == checks['due'], clients.memory
  if not ids:
    method['rounds'] += 1
    checks['due'] += is_due
    return {'steps': 0}
  if not is_due:
    report = fesem(clients, method, keep=checks['hold'], **options)
    checks['hold'] = np.float64(0)
    return report
  centers, before = method['centers'], method['assignment'].astype(int)
  count, weights, own = len(centers), clients.sizes[ids], before[ids]
  start = np.bincount(before[:6], minlength=count) / 6 @ centers
  points, losses = clients.collect(lambda i: clients.sgd(i, start))
  means = reference.means(points, own, weights, np.zeros((count, len(start))))
  present = reference.objective(points, means, own, weights)
  new, _, least = reference.best_kmeans(points, count, weights=weights)
  flow = np.zeros((count, count))
  np.add.at(flow, (new, own), weights)
  new = linear_sum_assignment(-flow)[1][new]
  moves = weights @ (new != own) / weights.sum()
  changed = moves > 0 and present - least > 0.1 * moves * present
  if clients.drawn != list(range(6)):
    free, left = (len(ids) - len(set(c)) for c in (own, new))
    changed &= free == left or least * free < 0.5 * present * left
  new = new if changed else own
  flow = np.zeros((count, count))
  np.add.at(flow, (new, own), weights)
  others = [i for i in range(6) if i not in clients.drawn]
  np.add.at(flow, (before[others],) * 2, clients.sizes[others])
  flow[~flow.any(axis=1)] = np.eye(count)[~flow.any(axis=1)]
  method['centers'] = flow / flow.sum(axis=1, keepdims=True) @ centers
  assignment = before.copy()
  assignment[ids] = new
  method['assignment'] = assignment
  method['client_params'][clients.drawn] = start
  method['client_params'][ids] = points
  method['rounds'] += 1
  checks['wait'] = recluster_every if changed else 2 * checks['wait']
  checks['due'] += checks['wait']
  checks['hold'] = np.float64(changed)
  memory['outcomes'] = memory.get('outcomes', set()) | {bool(changed)}
  assert not clients.last or memory['outcomes'] == {True, False}
  sizes = np.bincount(assignment[:6], minlength=count)
  moved = (assignment != before)[:6].sum()
  deployed = method['centers'][assignment]
  return clients.report(losses) | {
    'objective': least if changed else present, 'moved': moved, 'sizes': sizes,
    'deployed': deployed,
  }  # fmt: skip


def numbered_from_first(assignment):
  """Two clusters, the first client's called 0."""
  return assignment if assignment[0] == 0 else 1 - assignment


def matched(losses):
  """[S] the model of each loss vector: k-means, then the matching of least loss."""
  cluster = reference.best_kmeans(losses, 2)[0]
  cost = [losses[cluster == j].sum(axis=0) for j in range(2)]
  return linear_sum_assignment(np.array(cost))[1][cluster]


@references('clove', {'num_clusters': 2}, num_rounds=4)
def clove(clients, state, num_clusters):
  del num_clusters
  assignment = state['assignment'].astype(int).copy()
  if state['rounds'] == 0:
    assert (assignment == 2).all()
    assignment[clients.ids] = clients.after['assignment'][clients.ids]
    assert set(assignment[clients.ids]) <= {0, 1}
  else:
    assignment[clients.ids] = matched(clients.losses(state['centers'], clients.ids))
  report = clients.average_clusters(state, assignment)
  del report['deployed']  # Of clients that never took part it depends on losses.
  state['assignment'] = assignment
  state['rounds'] += 1
  return report


@references('cfl_gp', {'num_clusters': 2}, num_rounds=12)
def cfl_gp(clients, state, num_clusters):
  """Clusters in rounds 1, 3, ..., 9, by models 0, 1, 0, ..."""
  del num_clusters
  assignment, means = state['assignment'].astype(int).copy(), state['gradients']
  counts = state['counts']
  if clients.number in (1, 3, 5, 7, 9):
    k = clients.number // 2 % 2
    for i in clients.ids:
      counts[i, k] += 1
      slope = clients.on_all_examples(state['centers'][k], i)[1]
      means[i, k] += (slope - means[i, k]) / counts[i, k]
    joined = np.flatnonzero(counts.any(axis=1))
    rows = means[joined].reshape(len(joined), -1)
    left = np.linalg.svd(rows.T, full_matrices=False)[0]
    cluster = numbered_from_first(reference.best_kmeans(rows @ left[:, :2], 2)[0])
    # As few clients as possible move.
    stay = [
      [((cluster == j) & (assignment[joined] == k)).sum() for k in (0, 1)]
      for j in (0, 1)
    ]
    assignment[joined] = linear_sum_assignment(-np.array(stay))[1][cluster]
  report = clients.average_clusters(state, assignment, 'uniform')
  state['assignment'] = assignment
  state['rounds'] += 1
  assert not clients.last or set(assignment[:6]) == {0, 1}
  return report


def with_labels_that_move(number):
  """Labels of the first three clients move by one in the fifth round."""
  data = two_absent()
  if number < 5:
    return data
  y = np.asarray(data.y).copy()
  last = int(np.asarray(data.offsets)[3])
  y[:last] = (y[:last] + 1) % helpers.CLASSES
  return dataclasses.replace(data, y=y)


DRIFT = {'check_every': 2, 'max_clusters': 7}


@references(
  'fed_drift',
  {'drift_delta': 0.3, 'start_alone': True, **DRIFT},
  {'drift_delta': 0.02, 'start_alone': False, **DRIFT},
  training={'epochs': 3},
  num_rounds=6,
  dropout=False,
  data_of=with_labels_that_move,
)
def fed_drift(clients, state, drift_delta, start_alone, **options):
  del options
  before, last_used = state['assignment'].astype(int), state['last_used']
  assignment = before.copy()
  if clients.number == 1:
    assert assignment[:6].tolist() == (list(range(6)) if start_alone else [0] * 6)
    first = clients.losses(state['centers'][:1], range(6))[:, 0]
    np.testing.assert_allclose(state['client_losses'][:6], first, rtol=1e-5)
  if clients.number in (3, 5):
    losses = clients.losses(state['centers'], range(6))
    assignment[:6], least, started, clusters, shares = fed_drift_step(
      losses, assignment[:6], state['client_losses'][:6], last_used, clients.sizes[:6],
      drift_delta,
    )  # fmt: skip
    state['client_losses'][:6] = least
    old = state['centers'].copy()
    for cluster in clusters:
      share = [shares[k] for k in cluster]
      state['centers'][min(cluster)] = np.average(old[cluster], axis=0, weights=share)
      last_used[[k for k in cluster if k != min(cluster)]] = -1
    for k, source in started.items():
      state['centers'][k] = old[source]
    last_used[assignment[:6]] = clients.number // 2
    clients.memory['started'] = clients.memory.get('started', 0) + len(started)
    largest = max(map(len, clusters))
    clients.memory['largest'] = max(clients.memory.get('largest', 0), largest)
  report = clients.average_clusters(state, assignment)
  state['assignment'] = assignment
  state['rounds'] += 1
  state['centers'][last_used < 0] = clients.after['centers'][last_used < 0]
  assert not clients.last or clients.memory['started'] > 0
  assert not (clients.last and start_alone) or clients.memory['largest'] > 1
  return report


@references(
  'fed_cluster',
  {
    'max_clusters': 4, 'eps1': 0.6, 'eps2': 0.0, 'gamma': 0.4, 'min_size': 2,
    'min_rounds': 0, 'check_every': 2,
  },
  training={'batch_size': 10, 'devices': 1, 'hidden': (5,)},
  num_rounds=8,
  dropout=False,
  data_of=lambda number: helpers.federation([30] * 9, groups=np.arange(9) % 3),
)  # fmt: skip
def fed_cluster(clients, state, eps1, gamma, min_size, **options):
  """Checks in rounds 2, 4, ... part the clients twice, in different clusters."""
  del options
  before, count = state['assignment'].astype(int), int(state['num_clusters'])
  starts, assignment = state['centers'][before], before
  report = clients.average_clusters(state, assignment)
  if clients.number % 2 == 0:
    updates = clients.points - starts
    assignment, count = reference.split(updates, before, count, eps1, gamma, min_size)
    for k in range(count):  # Both parts go on from there.
      state['centers'][k] = state['centers'][before[assignment == k][0]]
  state['assignment'], state['num_clusters'] = assignment, count
  state['rounds'] += 1
  state['centers'][count:] = clients.after['centers'][count:]
  clients.memory['counts'] = {*clients.memory.get('counts', ()), count}
  assert not clients.last or clients.memory['counts'] == {1, 2, 3}
  return report | {
    'moved': (assignment != before).sum(),
    'sizes': np.bincount(assignment, minlength=4),
    'deployed': state['centers'][assignment],
  }


STOCFL = {'stocfl_tau': 0.3, 'stocfl_lambda': 0.6}


@references(
  'stocfl', STOCFL, cohorts=((0, 1, 4, 5), (1, 2, 4, 5), (0, 2, 3, 5)), dropout=False
)
def stocfl(clients, state, stocfl_tau, stocfl_lambda):
  groups, memory = state['clusters'], clients.memory
  anchor, average, ids = groups['anchor'][0], state['centers'][-1], clients.ids
  if clients.number == 1:
    assert not np.allclose(anchor, average)
    assert (state['centers'] == average).all()
  clusters, models = memory.get('clusters', []), memory.get('models', {})
  seen = {i for c in clusters for i in c}
  late = [i for i in ids if i not in seen]
  first_key = prng_streams.fold(clients.key, prng_streams.FIRST_COHORT)
  for i in late:
    described, _ = clients.sgd(i, anchor, key=first_key, epochs=10)
    groups['gradients'][i] = anchor - described
  before, begins = models, [[i] for i in late]
  clusters = stocfl_merged(clusters + begins, groups['gradients'], stocfl_tau)
  models = {}
  for cluster in clusters:  # Of the largest one; here no two are equally large.
    parts = [old for old in before if set(old) <= set(cluster)]
    largest = max(parts, key=len, default=None)
    models[tuple(cluster)] = average if largest is None else before[largest]
  expected = np.full(8, 6)
  for k, cluster in enumerate(clusters):
    expected[cluster] = k
  joined, assignment = expected < 6, clients.after['clusters']['assignment'].astype(int)
  assert adjusted_rand_score(expected[joined], assignment[joined]) == 1.0
  assert (assignment[joined] < 6).all()
  moved = (assignment != groups['assignment'])[clients.sizes > 0].sum()
  # The numbers of clusters do not matter.
  groups['assignment'] = np.where(joined, assignment, 6)
  groups['joined'] = joined
  groups['sizes'] = np.bincount(assignment[joined], minlength=6)
  centers = clients.after['centers'].copy()
  centers[-1] = np.mean([clients.sgd(i, average)[0] for i in ids], axis=0)
  squared, losses = 0.0, {}
  for cluster, start in models.items():
    rows = []
    for i in set(cluster) & set(ids):
      w, losses[i] = clients.sgd(i, start, lambda w: stocfl_lambda * (w - average))
      rows.append(w)
    models[cluster] = mean = np.mean(rows, axis=0) if rows else start
    squared += sum(np.square(w - mean).sum() for w in rows)
    centers[assignment[cluster[0]]] = mean
  state['centers'] = centers
  memory['clusters'], memory['models'] = clusters, models
  assert not clients.last or 1 < len(clusters) < 6
  report = clients.report([losses[i] for i in ids], passes=2)
  sizes = np.bincount(groups['assignment'][:6], minlength=7)
  return report | {'objective': squared / len(ids), 'moved': moved, 'sizes': sizes}


# Several centers for each client.


def em_round(clients, state, log_likelihoods, weighting):
  """Algorithm 1 of Marfoq et al.; returns the report, and client -> q [K, n].

  `log_likelihoods` maps labels [n] and losses [K, n] to [K, n].
  """
  centers, mixture = state['centers'], state['mixture']
  assert clients.number > 1 or (mixture == 0.5).all()
  # The rows of each batch: labels that are row numbers.
  numbers = np.concatenate([np.arange(size) for size in clients.sizes])
  numbered = dataclasses.replace(clients.data, y=numbers.astype(np.int32))
  shares, rows, losses = {}, [], []
  for i in clients.ids:
    x, y = clients.data.client(i)
    tables = [reference.example_losses(clients.model(c), x, y) for c in centers]
    joint = mixture[i][:, None] * np.exp(log_likelihoods(y, np.stack(tables)))
    q = shares[i] = joint / joint.sum(axis=0)
    mixture[i] = q.mean(axis=1)
    batches = helpers.batches(numbered, clients.local.schedule, i, clients.key)
    trained = [
      reference.local_sgd(
        clients.model(c), [(x[n], y[n], q[k, n]) for _, n in batches], RATE
      )
      for k, c in enumerate(centers)
    ]
    rows.append([reference.flat(w) for w, _ in trained])
    losses.append(sum(loss for _, loss in trained))
  state['centers'] = clients.mean(rows, weighting)
  return clients.report(losses, passes=2), shares


MIXED = {'training': {'batch_size': 3, 'epochs': 1}, 'num_rounds': 4}


@references(
  'fed_em',
  {'num_clusters': 2, 'weighting': 'by_examples'},
  {'num_clusters': 2, 'weighting': 'uniform'},
  **MIXED,
)
def fed_em(clients, state, num_clusters, weighting):
  del num_clusters
  report, _ = em_round(clients, state, lambda y, losses: -losses, weighting)
  assert not clients.last or np.ptp(state['mixture'], axis=1).max() > 0.1
  return report


@references('fed_rc', {'num_clusters': 2}, **MIXED)
def fed_rc(clients, state, num_clusters):
  del num_clusters
  total = state['classes'].sum(axis=0)
  share = total / np.maximum(total.sum(axis=1, keepdims=True), 1e-30)
  share = np.maximum(share, 1e-8)

  def log_likelihoods(y, losses):
    return -losses - np.log(share[:, y])

  report, shares = em_round(clients, state, log_likelihoods, 'by_examples')
  for i, q in shares.items():
    y = clients.data.client(i)[1]
    state['classes'][i] = [[row[y == c].sum() for c in range(3)] for row in q]
  assert not clients.last or np.ptp(share, axis=0).max() > 0.02
  return report


@references(
  'fed_few', {'num_clusters': 2, 'few_mu': 0.1}, {'num_clusters': 3, 'few_mu': 0.3}
)
def fed_few(clients, state, num_clusters, few_mu):
  centers, weights = state['centers'], clients.weights('by_examples')
  losses = clients.losses(centers, clients.ids)
  powers = np.exp(-losses * (weights / weights.sum())[:, None] / few_mu)
  sums = powers.sum(axis=1)
  importance, match = (1 / sums) / (1 / sums).sum(), powers / sums[:, None]
  after, best = centers.copy(), np.full(len(clients.ids), np.inf)
  for k in range(num_clusters):
    models, loss = clients.collect(lambda i, k=k: clients.sgd(i, centers[k]))
    after[k] += (importance * match[:, k]) @ (models - centers[k])
    best = np.minimum(best, loss)
  state['centers'] = after
  state['assignment'][clients.ids] = losses.argmin(axis=1)
  newest = clients.losses(after, range(6)).argmin(axis=1)
  report = clients.report(best, passes=num_clusters)
  return report | {'deployed': after[newest]}


def spectral_parts(similarity, n):
  """Labels by pivoted QR of the Laplacian's first eigenvectors, and all n + 1 of them.

  Damle, Minden and Ying, "Simple, direct and efficient multi-way spectral clustering".
  """
  similarity = similarity - np.diag(similarity.diagonal())
  root = np.sqrt(similarity.sum(axis=1))
  laplacian = np.eye(len(root)) - similarity / np.outer(root, root)
  vectors = np.linalg.eigh(laplacian)[1][:, : n + 1] / root[:, None]
  first = vectors[:, :n]
  _, _, pivots = linalg.qr(first.T, pivoting=True)
  u, _, v = linalg.svd(first[pivots[:n]].T)
  return np.abs(first @ (u @ v)).argmax(axis=1), vectors[:, 1:]


@references(
  'fed_gwc', {'min_size': 2, 'gwc_eps': 2.0}, num_rounds=4,
  atol={'interactions': 3e-4, 'change': 1e-4},
)  # fmt: skip
def fed_gwc(clients, state, min_size, gwc_eps, gamma=0.1):
  before, p = state['assignment'].astype(int), state['interactions']
  traces = {}

  def train(i):
    losses = traces.setdefault(i, [])

    def step(w, x, y):
      loss, slope = clients.gradient(w, x, y)
      losses.append(loss)
      return w - RATE * slope, loss

    return clients.steps(i, state['centers'][before[i]], step)

  points, losses = clients.collect(train)
  ready, sizes = [], clients.sizes
  for k in range(int(state['num_clusters'])):
    group = [i for i in clients.ids if before[i] == k]
    if group:
      rewards = {i: [] for i in group}
      for s in range(max(len(traces[i]) for i in group)):
        still = [i for i in group if len(traces[i]) > s]
        values, weights = [traces[i][s] for i in still], sizes[still]
        mean = np.average(values, weights=weights)
        variance = np.average((values - mean) ** 2, weights=weights)
        for i, loss in zip(still, values, strict=True):
          rewards[i].append(np.exp(-((loss - mean) ** 2) / 2 / max(variance, 1e-12)))
      share = len(group) / ((before == k) & (sizes > 0)).sum()
      new = np.array([np.mean(rewards[i]) for i in group])
      block = np.ix_(group, group)
      change = share * ((new / new.sum())[:, None] - p[block])
      p[block] += change
      state['change'][k] = (1 - share) * state['change'][k] + share * (change**2).mean()
      settles = state['change'][k] < gwc_eps
      state['settled'][k] = state['settled'][k] + 1 if settles else 0
    if state['settled'][k] >= max(np.round(6 / len(clients.drawn)), 1):
      ready.append(k)
  state['centers'] = reference.means(
    points, before[clients.ids], clients.weights('by_examples'), state['centers']
  )
  for k in ready:
    state['change'][k], state['settled'][k] = 1.0, 0
    members = np.flatnonzero((state['assignment'] == k) & (sizes > 0))
    rows = p[np.ix_(members, members)]
    rows = (rows - rows.min()) / max(np.ptp(rows), 1e-8)
    similarity = np.eye(len(members))
    for i, j in itertools.permutations(range(len(members)), 2):
      apart = np.delete(rows[i] - rows[j], [i, j])
      similarity[i, j] = np.exp(-gamma * apart @ apart)
    best = (1.0, np.zeros(len(members), int))
    for n in range(2, min(len(members) // min_size, 4) + 1):
      parts, vectors = spectral_parts(similarity, n)
      score = davies_bouldin_score(vectors, parts)
      best = min(best, (score, parts), key=lambda pair: pair[0])
    for label in np.unique(best[1][best[1] != best[1][0]]):
      new = int(state['num_clusters'])
      state['assignment'][members[best[1] == label]] = new
      state['centers'][new], state['num_clusters'] = state['centers'][k], new + 1
  assert not clients.last or state['num_clusters'] > 1
  return clients.report(losses)


@references('fed_soft', {'num_clusters': 2, 'soft_lambda': 0.7}, **MIXED)
def fed_soft(clients, state, num_clusters, soft_lambda):
  del num_clusters
  centers, personal, importance = (
    state[name] for name in ('centers', 'client_params', 'importance')
  )
  losses = []
  for i in clients.ids:
    if state['rounds'] - state['estimated'][i] >= 2:
      tables = [
        reference.example_losses(clients.model(c), *clients.data.client(i))
        for c in centers
      ]
      shares = np.bincount(np.argmin(tables, axis=0), minlength=2) / clients.sizes[i]
      importance[i], state['estimated'][i] = np.maximum(shares, 1e-4), state['rounds']

    def pull(w, i=i):
      pairs = zip(importance[i], centers, strict=True)
      return soft_lambda * sum(u * (w - c) for u, c in pairs)

    personal[i], loss = clients.sgd(i, personal[i], pull)
    losses.append(loss)
  weights = importance[clients.ids] * clients.sizes[clients.ids, None]
  rows = personal[clients.ids]
  state['centers'] = np.stack([np.average(rows, 0, w) for w in weights.T])
  state['rounds'] += 1
  assert not clients.last or np.ptp(importance, axis=1).max() > 0.2
  return clients.report(losses) | {'deployed': personal}
