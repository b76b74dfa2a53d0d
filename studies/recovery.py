r"""Recovery of FeSEM from wrong starts: rules that were tried, kept and failed.

  python -m studies.recovery --data=rotated_digits --num_seeds=20 \
      --save=recovery_rotated_digits

Every rule goes on from the same starts: FeSEM's own, in which each client was put into
a random cluster with the probability `--shuffle`. Rules that are options of the library
are run as such; the others are here.
Of each round: ARI against the true groups. At the end: accuracy of the deployed models,
and the median seconds of all rounds of a seed. `--draw` makes a figure of saved results
instead.
"""

import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from sklearn.metrics import adjusted_rand_score

from benchmarks import common
from fesem_jax import algorithms, data, models
from fesem_jax.algorithms.common.wrapped import inner
from fesem_jax.algorithms.fesem import FesemState
from fesem_jax.algorithms.wrappers.reclustering import Checks, ReclusteringState
from fesem_jax.core import tree
from fesem_jax.core.algorithm import Algorithm, ClientModels
from fesem_jax.core.arrangement import arrange
from fesem_jax.core.batching import Schedule
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import LocalTraining, local_training
from fesem_jax.core.prng_streams import SHUFFLE, fold
from fesem_jax.core.sampling import coin, everyone
from fesem_jax.evaluation import evaluate
from fesem_jax.server import em
from fesem_jax.server.kmeans import kmeans
from fesem_jax.training.client_losses import start_by_loss
from fesem_jax.training.cohort import train_cohort
from studies.reseeding import with_reseeding

_DATA = flags.DEFINE_enum(
  'data',
  'rotated_digits',
  ['rotated_digits', 'rotated_mnist', 'label_permuted_mnist', 'mnist_writers'],
  'Data set; both kinds of MNIST have 200 clients of 100 images.',
)
_SEEDS = flags.DEFINE_integer('num_seeds', 20, 'Seeds of data, start and rounds.')
_FIRST = flags.DEFINE_integer('first_seed', 0, 'The first of these seeds.')
_SHUFFLE = flags.DEFINE_list('shuffle', ['1.0'], 'Shares of clients put elsewhere.')
_ROUNDS = flags.DEFINE_integer('rounds', 24, 'Rounds.')
_EVERY = flags.DEFINE_integer('every', 5, 'Rounds between the acts of a rule.')
_RULES = flags.DEFINE_list('rules', [], 'Only these; default: all.')
_EPOCHS = flags.DEFINE_integer('local_epochs', 0, 'Local epochs or steps; 0: as below.')
_RATE = flags.DEFINE_float('learning_rate', 0.1, 'Local learning rate.')
_LAMBDA = flags.DEFINE_float('prox_lambda', 0.01, 'lambda of FeSEM.')
_SAVE = flags.DEFINE_string('save', '', 'Name of the file of results; none: not saved.')
_DRAW = flags.DEFINE_string('draw', '', 'Results to draw beside it, as .png and .svg.')

COLUMNS = ('rule', 'shuffle', 'recovered', 'ari', 'accuracy', 'seconds')

Step = Callable[[FesemState, FederatedData, jax.Array, int], FesemState]


class Rule(NamedTuple):
  """A rule: what it runs in each round.

  Attributes:
    options: of FeSEM.
    acts: what replaces a round in every `--every`-th one, or None.
    loss_checks: every so many rounds, clients start from the center of least loss; 0:
      never.
    reseeds: whether a center without clients moves to the farthest client.
  """

  options: dict[str, Any]
  acts: Callable[[Algorithm], Callable[..., FesemState]] | None = None
  loss_checks: int = 0
  reseeds: bool = False


def _load(name: str, seed: int) -> tuple[FederatedData, FederatedData, LocalTraining]:
  """Both splits as arranged, and how clients train."""
  work = Schedule(10, _EPOCHS.value or 2)
  hidden = 50
  if name == 'rotated_digits':
    splits = data.load('digits', partition='rotated', num_clients=80, seed=seed)
    hidden = 64
  elif name == 'mnist_writers':
    partition = 'natural(min_examples=50)'
    splits = data.load('mnist_writers', partition=partition, seed=seed)
  else:
    partition = 'rotated' if name == 'rotated_mnist' else 'label_permuted'
    splits = data.load(
      'mnist',
      partition=partition,
      num_clients=200,
      examples_per_client=100,
      seed=seed,
    )
    work = Schedule(0, steps=_EPOCHS.value or 10)
  model = models.build('mlp', splits[0].example_shape, splits[0].num_classes, [hidden])
  local = local_training(model, optax.sgd(_RATE.value))._replace(schedule=work)
  train, test = arrange(local, *splits)
  return train, test, local


def shuffled_start(
  fesem: Algorithm, probability: float, key: jax.Array, split: FederatedData
) -> FesemState:
  """FeSEM's start, where each client goes to a random cluster with a probability.

  Centers are then the unweighted means of these clusters' models.
  """
  state, cohort = fesem.init(key, split), everyone(split)
  count = jax.tree.leaves(state.centers)[0].shape[0]

  def draw(key: jax.Array) -> jax.Array:
    return jax.random.randint(key, (), 0, count)

  key = fold(key, SHUFFLE)
  moves = coin(key, split, cohort.ids, probability, SHUFFLE)
  drawn = jax.vmap(draw)(split.keys_of(key, cohort.ids))
  assignment = jnp.where(moves, drawn, state.assignment).astype(jnp.int32)
  ones = (split.sizes() > 0).astype(jnp.float32)
  mesh = fesem.local.mesh
  centers = em.m_step(state.client_params, assignment, ones, state.centers, mesh)
  return state._replace(assignment=assignment, centers=centers)


def with_loss_checks(fesem: Algorithm, every: int) -> Algorithm:
  """Lets clients start from the center of least training loss in some rounds.

  That is IFCA's rule, in every so many rounds. A client whose update does not count
  keeps the cluster that it had.
  """

  def step(state, split, cohort, key):
    old = tree.rows_of(state.assignment, cohort)
    check = jnp.broadcast_to((state.rounds + 1) % every == 0, old.shape)
    starts = start_by_loss(fesem.local, state.centers, old, check, split, cohort)
    begun = state._replace(assignment=tree.with_rows(state.assignment, cohort, starts))
    after, info = fesem.step(begun, split, cohort, key)
    new = tree.rows_of(after.assignment, cohort)
    assert info.clusters is not None
    assert info.clusters.took_part is not None
    new = jnp.where(info.clusters.took_part, new, old)
    assignment = tree.with_rows(state.assignment, cohort, new)
    return after._replace(assignment=assignment), info

  return fesem._replace(step=step)


def _mean_of_clients(state: FesemState, split: FederatedData) -> ClientModels:
  """The mean of all clients' centers."""
  own = tree.take(state.centers, state.assignment)
  exists = (split.sizes() > 0).astype(jnp.float32)
  first = jax.tree.map(lambda x: x[:1], state.centers)
  one = jnp.zeros_like(state.assignment)
  return ClientModels(em.m_step(own, one, exists, first))


def directions(algorithm: Algorithm) -> Callable[..., FesemState]:
  """Clients go to the cluster whose mean update is nearest to their own update."""

  @jax.jit
  def act(state, split, key):
    local, cohort = algorithm.local, everyone(split)
    starts = ClientModels(state.centers, state.assignment)
    trained = train_cohort(local, starts, split, cohort, key)
    ones = trained.weights('uniform')
    own = tree.take(state.centers, state.assignment)
    updates = jax.tree.map(jnp.subtract, trained.params, own)
    none = tree.zeros_like(state.centers)
    means = em.m_step(updates, state.assignment, ones, none)
    new, _ = em.e_step(updates, means)
    centers = em.m_step(trained.params, new, ones, state.centers)
    return state._replace(centers=centers, assignment=new, rounds=state.rounds + 1)

  return act


def from_the_mean(algorithm: Algorithm) -> Callable[..., FesemState]:
  """Clients train from the mean of the centers; the E-step is as ever."""

  @jax.jit
  def act(state, split, key):
    local, cohort = algorithm.local, everyone(split)
    starts = _mean_of_clients(state, split)
    trained = train_cohort(local, starts, split, cohort, key)
    new, _ = em.e_step(trained.params, state.centers)
    own = tree.take(state.centers, state.assignment)
    centers = em.m_step(own, new, trained.weights('uniform'), state.centers)
    return state._replace(centers=centers, assignment=new, rounds=state.rounds + 1)

  return act


def split_and_merge(algorithm: Algorithm) -> Callable[..., FesemState]:
  """Parts the center whose clients disagree most; merges the two nearest centers.

  The clients of one center started alike, so that 2-means of their models is a fair
  clustering, as in FedCluster.
  """

  @jax.jit
  def halves(state, split, key):
    local, cohort = algorithm.local, everyone(split)
    starts = ClientModels(state.centers, state.assignment)
    trained = train_cohort(local, starts, split, cohort, key)
    num_clusters = jax.tree.leaves(state.centers)[0].shape[0]
    ids, exists = jnp.asarray(split.client_ids), trained.took_part()

    def half(k):
      mine = exists & (state.assignment == k)
      halves_ = kmeans(key, trained.params, mine, 2, ids, restarts=5)
      one = jax.tree.map(lambda c: c[k][None], state.centers)
      zeros = jnp.zeros_like(state.assignment)
      mean = em.m_step(trained.params, zeros, mine.astype(jnp.float32), one)
      whole = em.objective(trained.params, mean, zeros, mine.astype(jnp.float32))
      gain = mine.sum() * (whole - halves_.objective)
      return jnp.where(mine.sum() > 3, gain, -1.0), halves_.assignment

    gains, parts = jax.lax.map(half, jnp.arange(num_clusters))
    apart = tree.squared_distances(state.centers, state.centers)
    return trained.params, gains, parts, apart

  @jax.jit
  def move(state, stack, assignment, split):
    ones = (split.sizes() > 0).astype(jnp.float32)
    centers = em.m_step(stack, assignment, ones, state.centers)
    return state._replace(
      centers=centers, assignment=assignment, rounds=state.rounds + 1
    )

  def act(state, split, key):
    stack, gains, parts, apart = halves(state, split, key)
    k = int(gains.argmax())
    apart = np.array(apart)
    apart[k], apart[:, k] = np.inf, np.inf
    np.fill_diagonal(apart, np.inf)
    a, b = divmod(int(apart.argmin()), len(apart))
    new = np.array(state.assignment)
    new[new == b] = a
    new[(np.asarray(state.assignment) == k) & (np.asarray(parts[k]) == 1)] = b
    return move(state, stack, jnp.asarray(new), split)

  return act


def rules(every: int) -> dict[str, Rule]:
  """All rules by name."""
  return {
    'none': Rule({}),
    'IFCA': Rule({'prox_lambda': 0.0}, loss_checks=1),
    'loss check': Rule({}, loss_checks=every),
    'loss check and reseeding': Rule({}, loss_checks=every, reseeds=True),
    'directions of updates': Rule({}, directions),
    'split and merge': Rule({}, split_and_merge),
    'split and merge, loss check': Rule({}, split_and_merge, loss_checks=2),
    'from the mean': Rule({}, from_the_mean),
    'lambda from 1 to 0': Rule({'prox_lambda': 1.0}),
    'clustering anew': Rule({'recluster_every': every}),
  }


def _steps(local: LocalTraining, rule: Rule) -> tuple[Algorithm, Step]:
  """The method and one round of a rule."""
  options = {'num_clusters': 4, 'prox_lambda': _LAMBDA.value} | rule.options
  algorithm = algorithms.build('fesem', local, **options)
  if rule.reseeds:
    algorithm = with_reseeding(algorithm)
  if rule.loss_checks:
    algorithm = with_loss_checks(algorithm, rule.loss_checks)
  round_of_fesem = jax.jit(algorithm.step)
  act = None if rule.acts is None else rule.acts(algorithm)
  later = {}
  if options['prox_lambda'] == 1.0:  # A third of the rounds each.
    for part, value in ((1, 0.1), (2, 0.0)):
      other = algorithms.build('fesem', local, **options | {'prox_lambda': value})
      later[part] = jax.jit(other.step)

  def step(state, split, key, number):
    if act is not None and number % _EVERY.value == 0:
      return act(state, split, key)
    run = later.get(3 * (number - 1) // _ROUNDS.value, round_of_fesem)
    return run(state, split, everyone(split), key)[0]

  return algorithm, step


def main(argv: list[str]) -> None:
  """Runs the study."""
  del argv
  if _DRAW.value:
    from studies import recovery_figure  # Needs Matplotlib, which runs do not.

    recovery_figure.draw(pathlib.Path(_DRAW.value))
    return
  mesh = common.setup()
  numbers = range(_FIRST.value, _FIRST.value + _SEEDS.value)
  seeds = {seed: _load(_DATA.value, seed) for seed in numbers}
  any_train, _, local = seeds[_FIRST.value]
  chosen = {n: r for n, r in rules(_EVERY.value).items() if n in (_RULES.value or [n])}
  starts = {}
  for share in map(float, _SHUFFLE.value):
    options = {'num_clusters': 4, 'prox_lambda': _LAMBDA.value}
    fesem = algorithms.build('fesem', local, **options)
    start = jax.jit(functools.partial(shuffled_start, fesem, share))
    for seed, (train, _, _) in seeds.items():
      starts[share, seed] = start(jax.random.key(seed), train)

  @jax.jit
  def counts(state, train, test):
    used = ClientModels(inner(state).centers, inner(state).assignment)
    return evaluate.evaluate_clients(used, local, train, test, jax.random.key(0), 0)[0]

  rows: list[dict[str, Any]] = []
  for name, rule in chosen.items():
    algorithm, step = _steps(local, rule)
    like = jax.eval_shape(algorithm.init, jax.random.key(0), any_train)

    def start_of(share, seed, like=like, rule=rule):
      """The common start in the state of the rule's method."""
      if not isinstance(like, ReclusteringState):
        return starts[share, seed]
      checks = Checks.first(rule.options['recluster_every'])
      return ReclusteringState(starts[share, seed], checks)

    for share in map(float, _SHUFFLE.value):
      curves, accuracy, seconds = [], [], []
      for seed, (train, test, _) in seeds.items():
        truth = np.asarray(train.info.clusters)
        state = start_of(share, seed)

        def ari(state, truth=truth):
          assignment = np.asarray(inner(state).assignment)[: len(truth)]
          return float(adjusted_rand_score(truth, assignment))

        curve, spent = [ari(state)], 0.0
        if seed == _FIRST.value:  # Compile before the clock runs.
          for number in range(1, _ROUNDS.value + 1):
            state = step(state, train, jax.random.key(number), number)
          state = start_of(share, seed)
        for number in range(1, _ROUNDS.value + 1):
          key = jax.random.fold_in(jax.random.key(100 + seed), number)
          began = time.perf_counter()
          state = jax.block_until_ready(step(state, train, key, number))
          spent += time.perf_counter() - began
          curve.append(ari(state))
        scores = evaluate.scores(
          jax.device_get(counts(state, train, test)), local.model.task
        )
        curves.append(curve)
        accuracy.append(100 * scores['micro_accuracy'])
        seconds.append(spent)
      last = np.array(curves)[:, -1]
      rows.append(
        {
          'rule': name,
          'shuffle': share,
          'seeds': len(curves),
          'first_seed': _FIRST.value,
          'recovered': int((last > 1 - 1e-9).sum()),
          'ari': float(last.mean()),
          'accuracy': float(np.mean(accuracy)),
          'accuracy_sd': float(np.std(accuracy)),
          'seconds': float(np.median(seconds)),
          'curves': np.round(curves, 4).tolist(),
        }
      )
      print(common.table(rows[-1:], COLUMNS), flush=True)
  print(common.table(rows, COLUMNS))
  if _SAVE.value:
    print(common.save(_SAVE.value, mesh, rows))


if __name__ == '__main__':
  app.run(main)
