"""Every method against references, identities and shared properties."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms, em, sharding, streams, tree
from fesem_jax.algorithms.fed_cluster import bipartition, split_clusters
from fesem_jax.algorithms.robust import trimmed_mean
from fesem_jax.base import Cohort
from fesem_jax.errors import UserError
from tests import helpers, reference

SIZES = [6, 3, 9, 5, 8, 4]
GROUPS = [0, 1, 0, 1, 0, 1]

# Every method with options that exercise it; shared properties hold for all.
METHODS = [
  ('fed_sgd', {}),
  ('fed_dist', {}),
  ('fed_dws', {'server_learning_rate': 0.3}),
  ('robust', {'num_clusters': 2, 'trim': 0.2, 'beta': 0.2, 'init_epochs': 2}),
  ('robust', {'num_clusters': 2, 'aggregation': 'median', 'init_epochs': 2}),
  (
    'fed_cluster',
    {
      'min_size': 2,
      'min_rounds': 0,
      'check_every': 2,
      'eps1': 1.1,
      'eps2': 0.0,
      'max_clusters': 3,
    },
  ),
  ('hypo_cluster', {'num_clusters': 2, 'init_restarts': 3}),
  ('hypo_cluster', {'num_clusters': 2, 'variant': 'gradient'}),
  ('fed_dane', {'same_cohort': True}),
  ('fed_prox', {'straggler_fraction': 0.5}),
  ('fed_avg', {}),
  ('fed_avg', {'weighting': 'uniform'}),
  ('non_fed', {}),
  ('fesem', {'num_clusters': 2}),
  (
    'fesem',
    {
      'num_clusters': 3,
      'weighting': 'by_examples',
      'prox_weighting': 'paper',
      'loss_check_every': 2,
      'reseed_empty': True,
    },
  ),
  ('fesem', {'num_clusters': 2, 'cluster_on': 'logits', 'prox_lambda': 0.0}),
  ('fesem', {'num_clusters': 2, 'client_state': 'streamed', 'init_clients': 4}),
]
IDS = [f'{name}-{"-".join(map(str, options.values()))}' for name, options in METHODS]


def run(algorithm, data, rounds=3, cohort=None, seed=0):
  """Final state and all infos of a few compiled rounds."""
  state = jax.jit(algorithm.init)(jax.random.key(seed), data)
  step, infos = jax.jit(algorithm.step), []
  for r in range(1, rounds + 1):
    chosen = cohort(r) if cohort else helpers.everyone(data)
    state, info = step(state, data, chosen, jax.random.fold_in(jax.random.key(9), r))
    if algorithm.between is not None:
      state, info = algorithm.between(state, info)
    infos.append(info)
  return state, infos


def initial(algorithm, data, key=0):
  """Compiled initial state."""
  key = jax.random.key(key) if isinstance(key, int) else key
  return jax.jit(algorithm.init)(key, data)


@functools.cache
def base_run(index):
  """Three rounds of `METHODS[index]` on the standard federation."""
  name, options = METHODS[index]
  algorithm = algorithms.build(name, helpers.local(chunk=3), **options)
  data = federation()
  state, infos = run(algorithm, data)
  return algorithm, data, state, infos


def federation():
  """Six clients in two groups."""
  return helpers.federation(SIZES, groups=GROUPS)


def matrix(stack):
  """[S, P] float64 of a stack."""
  return np.concatenate(
    [np.asarray(x, np.float64).reshape(len(x), -1) for x in jax.tree.leaves(stack)],
    axis=1,
  )


def deployed(algorithm, state, data):
  return matrix(algorithm.client_params(state, data, jnp.arange(data.num_clients)))


def assert_close(a, b, rtol=1e-4, atol=1e-5):
  np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


# Float64 references.


def reference_round(local, data, starts, ids, key, prox=None):
  """Each client of `ids` trained from its start by the reference: [S, P]."""
  out = []
  for start, i in zip(starts, ids, strict=True):
    batches = helpers.batches(data, local.schedule, i, key)
    penalty = 0.0 if prox is None else prox[i]
    out.append(reference.local_sgd(start, batches, 0.1, penalty)[0])
  return out


def unflatten(vector, like):
  """A vector as a reference model of the same layers."""
  out, at = [], 0
  for layer in like:
    parts = []
    for part in layer:
      parts.append(vector[at : at + part.size].reshape(part.shape))
      at += part.size
    out.append(tuple(parts))
  return out


@pytest.mark.parametrize('weighting', ['uniform', 'by_examples'])
def test_fed_avg_matches_float64_reference(weighting):
  data, local = helpers.federation(SIZES), helpers.local(epochs=2)
  algorithm = algorithms.build('fed_avg', local, weighting=weighting)
  state = initial(algorithm, data)
  model = reference.from_params(state.params, 0)
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(len(SIZES))
  for r in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), r)
    trained = reference_round(local, data, [model] * 6, range(6), key)
    mean = np.average([reference.flat(w) for w in trained], axis=0, weights=weights)
    model = unflatten(mean, model)
  state, _ = run(algorithm, data)
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)


@pytest.mark.parametrize('prox_weighting', ['uniform', 'paper'])
@pytest.mark.parametrize('weighting', ['uniform', 'by_examples'])
def test_fesem_matches_float64_reference(prox_weighting, weighting):
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build(
      'fesem', local, num_clusters=2, prox_lambda=0.2,
      prox_weighting=prox_weighting, weighting=weighting,
  )  # fmt: skip
  state = initial(algorithm, data)
  centers = np.stack(
    [reference.flat(reference.from_params(state.centers, k)) for k in (0, 1)]
  )
  like = reference.from_params(state.centers, 0)
  assignment = np.asarray(state.assignment)
  sizes = np.array(SIZES)
  alpha = sizes / sizes.sum()
  prox = np.full(6, 0.2) if prox_weighting == 'uniform' else 0.2 / (6 * alpha)
  weights = sizes if weighting == 'by_examples' else np.ones(6)
  objectives, moves = [], []
  for r in (1, 2, 3, 4):
    key = jax.random.fold_in(jax.random.key(9), r)
    starts = [unflatten(centers[k], like) for k in assignment]
    trained = reference_round(local, data, starts, range(6), key, prox)
    points = np.stack([reference.flat(w) for w in trained])
    new = reference.nearest(points, centers)
    centers = reference.means(points, new, weights, centers)
    moves.append((new != assignment).sum())
    assignment = new
    objectives.append(reference.objective(points, centers, assignment))
  state, infos = run(algorithm, data, rounds=4)
  got = np.stack(
    [reference.flat(reference.from_params(state.centers, k)) for k in (0, 1)]
  )
  assert_close(got, centers, rtol=1e-3)
  np.testing.assert_array_equal(state.assignment, assignment)
  assert_close([i.clusters.objective for i in infos], objectives, rtol=1e-3)
  assert [int(i.clusters.moved) for i in infos] == moves


def test_fesem_initialization_trains_then_clusters():
  data, local = federation(), helpers.local()
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, init_epochs=3, weighting='by_examples'
  )
  key = jax.random.key(4)
  state = initial(algorithm, data, key)
  model_key, train_key = (streams.fold(key, s) for s in (streams.MODEL, streams.LOCAL))
  start = reference.from_params(tree.expand(local.model.init(model_key)), 0)
  longer = local._replace(schedule=local.schedule._replace(epochs=3))
  points = np.stack(
    [
      reference.flat(w)
      for w in reference_round(longer, data, [start] * 6, range(6), train_key)
    ]
  )
  own = lambda stack, n: np.stack(
    [reference.flat(reference.from_params(stack, i)) for i in range(n)]
  )
  assert_close(own(state.client_params, 6), points, rtol=1e-3)
  # The clustering is the best of all partitions into two (there are few).
  best = min(
      (
          sum(((points[np.array(m)] - points[np.array(m)].mean(0)) ** 2).sum()
              for m in ([i for i in range(6) if mask >> i & 1],
                        [i for i in range(6) if not mask >> i & 1]) if m),
          mask,
      )
      for mask in range(1, 32)
  )[1]  # fmt: skip
  truth = [best >> i & 1 for i in range(6)]
  assert adjusted_rand_score(truth, state.assignment) == 1.0
  want = reference.means(
    points,
    np.asarray(state.assignment),
    np.array(SIZES),
    np.zeros((2, points.shape[1])),
  )
  assert_close(own(state.centers, 2), want, rtol=1e-3)


def test_fesem_leaves_an_empty_center_where_it_is():
  data, local = helpers.federation(SIZES), helpers.local()
  algorithm = algorithms.build('fesem', local, num_clusters=2)
  state = initial(algorithm, data)
  far = jax.tree.map(lambda c: c.at[1].add(100.0), state.centers)
  state = state._replace(centers=far, assignment=jnp.zeros(6, jnp.int32))
  state, info = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(1)
  )
  assert info.clusters.sizes.tolist() == [6, 0]
  np.testing.assert_array_equal(matrix(state.centers)[1], matrix(far)[1])
  assert np.isfinite(matrix(state.centers)).all()


def lost_start(algorithm, data):
  """FeSEM's state with all clients in cluster 0, at the mean of all models."""
  state = initial(algorithm, data)
  mean = lambda x: x.mean(axis=0, keepdims=True)
  far = lambda x, c: jnp.concatenate([mean(x), 100.0 + mean(x)])
  centers = jax.tree.map(far, state.client_params, state.centers)
  nobody = jnp.zeros_like(state.assignment)
  return state._replace(centers=centers, assignment=nobody)


def test_an_empty_center_moves_to_the_farthest_client_only_where_asked():
  data, local = federation(), helpers.local()
  both = [
    algorithms.build('fesem', local, num_clusters=2, reseed_empty=on)
    for on in (False, True)
  ]
  state = lost_start(both[0], data)
  plain, seeded = (
    jax.jit(a.step)(state, data, helpers.everyone(data), jax.random.key(1))[0]
    for a in both
  )
  points = matrix(plain.client_params)
  distance = ((points - matrix(state.centers)[0]) ** 2).sum(axis=1)
  farthest = int(distance.argmax())
  assert not plain.assignment.any()
  np.testing.assert_array_equal(np.flatnonzero(seeded.assignment), [farthest])
  np.testing.assert_array_equal(matrix(seeded.centers)[1], points[farthest])
  np.testing.assert_array_equal(matrix(seeded.centers)[0], matrix(plain.centers)[0])


def test_reseeding_takes_another_client_for_each_empty_center():
  data = helpers.federation([4, 4, 4, 4])
  centers = {'w': jnp.arange(4.0)[:, None]}
  trained = {'w': jnp.array([[10.0], [40.0], [30.0], [20.0]])}
  distance = jnp.array([1.0, 4.0, -1.0, 2.0])  # Client 2 failed.
  ids = jnp.array([3, 2, 1, 0])
  cohort = Cohort(ids, everyone=False)
  moved, assignment = em.reseed_empty(
    centers, jnp.array([2, 2, 2, 2]), trained, distance, cohort, data
  )
  # Rows 1, 3, 0 are the farthest, clients 2, 0 and 3.
  np.testing.assert_array_equal(assignment, [1, 2, 0, 3])
  np.testing.assert_array_equal(moved['w'][:, 0], [40.0, 20.0, 2.0, 10.0])


def test_reseeding_leaves_no_cluster_empty():
  # Client 3 is the farthest, but alone in its cluster; client 1 is next.
  data = helpers.federation([4, 4, 4, 4])
  centers = {'w': jnp.arange(3.0)[:, None]}
  trained = {'w': jnp.array([[1.0], [2.0], [3.0], [4.0]])}
  distance = jnp.array([1.0, 3.0, 2.0, 9.0])
  moved, assignment = em.reseed_empty(
    centers, jnp.array([0, 0, 0, 1]), trained, distance, helpers.everyone(data), data
  )
  np.testing.assert_array_equal(assignment, [0, 2, 0, 1])
  np.testing.assert_array_equal(moved['w'][:, 0], [0.0, 1.0, 2.0])
  # Two centers are empty and two clients are left: neither goes.
  both = jnp.array([0, 0, 3, 3])
  centers = {'w': jnp.arange(4.0)[:, None]}
  _, assignment = em.reseed_empty(
    centers, both, trained, distance, helpers.everyone(data), data
  )
  np.testing.assert_array_equal(assignment, both)


def test_the_loss_check_improves_every_random_start_and_mends_half():
  groups = np.arange(16) % 4
  local = helpers.local(batch_size=10, hidden=(8,))
  found = {}
  for every in (0, 2):
    algorithm = algorithms.build('fesem', local, num_clusters=4, loss_check_every=every)
    init, step = jax.jit(algorithm.init), jax.jit(algorithm.step)
    for seed in range(6):
      data = helpers.federation([60] * 16, seed=seed, groups=groups)
      state = init(jax.random.key(0), data)
      random = np.random.default_rng(seed).permutation(16) // 4
      mean = lambda x, r=random: jnp.stack([x[r == k].mean(axis=0) for k in range(4)])
      centers = jax.tree.map(mean, state.client_params)
      state = state._replace(assignment=jnp.asarray(random, jnp.int32), centers=centers)
      for r in range(10):
        state, _ = step(state, data, helpers.everyone(data), jax.random.key(r))
      found[every, seed] = adjusted_rand_score(groups, state.assignment)
  without, checked = ([found[every, s] for s in range(6)] for every in (0, 2))
  assert all(b > a for a, b in zip(without, checked, strict=True))
  assert max(without) < 1
  assert checked.count(1) >= 3


def test_fesem_compares_only_the_named_layer():
  data, local = helpers.federation(SIZES), helpers.local(rate=1e-6)
  algorithm = algorithms.build('fesem', local, num_clusters=2, cluster_on='logits')
  state = initial(algorithm, data)
  # Center 1 is nearer in all parameters, center 0 in the last layer.
  centers = jax.tree.map(lambda c: jnp.stack([c[0], c[0]]), state.centers)
  centers['dense0']['kernel'] = centers['dense0']['kernel'].at[0].add(10.0)
  centers['logits']['kernel'] = centers['logits']['kernel'].at[1].add(1.0)
  clients = jnp.ones(6, jnp.int32).at[0].set(0)
  state = state._replace(centers=centers, assignment=clients)
  after, _ = jax.jit(algorithm.step)(
    state, data, helpers.everyone(data), jax.random.key(1)
  )
  np.testing.assert_array_equal(after.assignment, clients)
  whole = algorithms.build('fesem', local, num_clusters=2)
  state = state._replace(assignment=jnp.ones(6, jnp.int32))
  after, _ = jax.jit(whole.step)(state, data, helpers.everyone(data), jax.random.key(1))
  np.testing.assert_array_equal(after.assignment, 1)


def reference_gradient(model, data, i):
  """Gradient of client i's whole loss, as a vector."""
  return reference.flat(reference.loss_and_gradient(model, *data.client(i))[1])


def test_fed_sgd_matches_float64_reference():
  data, local = federation(), helpers.local()
  algorithm = algorithms.build('fed_sgd', local)
  model = reference.from_params(initial(algorithm, data).params, 0)
  alpha = np.array(SIZES) / sum(SIZES)
  for _ in range(3):
    g = sum(a * reference_gradient(model, data, i) for i, a in enumerate(alpha))
    model = unflatten(reference.flat(model) - 0.1 * g, model)
  state, _ = run(algorithm, data)
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)


@pytest.mark.parametrize(
  ('name', 'options', 'weights', 'prox', 'epsilon'),
  [
    ('fed_prox', {'prox_mu': 0.8}, SIZES, 0.4, 1.0),
    ('fed_dist', {'server_learning_rate': 0.3}, [1] * 6, 0.0, 0.3),
    ('fed_dws', {'server_learning_rate': 0.3}, SIZES, 0.0, 0.3),
  ],
)
def test_single_model_methods_match_float64_reference(
  name, options, weights, prox, epsilon
):
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build(name, local, **options)
  model = reference.from_params(initial(algorithm, data).params, 0)
  for r in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), r)
    trained = reference_round(local, data, [model] * 6, range(6), key, np.full(6, prox))
    mean = np.average([reference.flat(w) for w in trained], axis=0, weights=weights)
    c = reference.flat(model)
    model = unflatten(c + epsilon * (mean - c), model)
  state, _ = run(algorithm, data)
  got = reference.flat(reference.from_params(state.params, 0))
  assert_close(got, reference.flat(model), rtol=1e-3)


def test_fed_prox_penalty_is_not_zero_after_the_first_step():
  # Public code differentiates the penalty at w = c, where it vanishes.
  data, local = federation(), helpers.local(epochs=3)
  held, _ = run(algorithms.build('fed_prox', local, prox_mu=5.0), data)
  free, _ = run(algorithms.build('fed_prox', local, prox_mu=0.0), data)
  start = matrix(initial(algorithms.build('fed_avg', local), data).params)
  moved = lambda state: np.linalg.norm(matrix(state.params) - start)
  assert moved(held) < 0.8 * moved(free)


@pytest.mark.parametrize('weighting', ['uniform', 'by_examples'])
def test_nobody_prefers_a_center_that_gives_no_number(weighting):
  data, local = federation(), helpers.local()
  algorithm = algorithms.build(
    'hypo_cluster', local, num_clusters=2, weighting=weighting
  )
  state = initial(algorithm, data)
  broken = jax.tree.map(lambda c: c.at[1].set(jnp.nan), state.centers)
  state, info = jax.jit(algorithm.step)(
    state._replace(centers=broken), data, helpers.everyone(data), jax.random.key(1)
  )
  assert not state.assignment.any()
  assert int(info.trained) == 6


@pytest.mark.parametrize('weighting', ['uniform', 'by_examples'])
def test_hypo_cluster_matches_float64_reference(weighting):
  # The mean over all of a cluster's clients: public code applies only the first.
  data, local = federation(), helpers.local(epochs=2)
  algorithm = algorithms.build(
    'hypo_cluster', local, num_clusters=2, weighting=weighting
  )
  state = initial(algorithm, data)
  centers = [reference.from_params(state.centers, k) for k in (0, 1)]
  weights = np.array(SIZES) if weighting == 'by_examples' else np.ones(6)
  for r in (1, 2, 3):
    key = jax.random.fold_in(jax.random.key(9), r)
    losses = np.array([
      [reference.loss_and_gradient(c, *data.client(i))[0] for c in centers]
      for i in range(6)
    ])  # fmt: skip
    best = losses.argmin(axis=1)
    trained = reference_round(local, data, [centers[k] for k in best], range(6), key)
    points = np.stack([reference.flat(w) for w in trained])
    old = np.stack([reference.flat(c) for c in centers])
    new = reference.means(points, best, weights, old)
    centers = [unflatten(c, centers[0]) for c in new]
  state, _ = run(algorithm, data)
  np.testing.assert_array_equal(state.assignment, best)
  assert np.bincount(best).max() > 1
  for k in (0, 1):
    got = reference.flat(reference.from_params(state.centers, k))
    assert_close(got, reference.flat(centers[k]), rtol=1e-3)


@pytest.mark.parametrize(
  ('aggregation', 'beta'), [('trimmed_mean', 0.25), ('median', 0.1)]
)
def test_robust_round_matches_float64_reference(aggregation, beta):
  data, local = federation(), helpers.local()
  algorithm = algorithms.build(
    'robust', local, num_clusters=2, aggregation=aggregation, beta=beta, init_epochs=2
  )
  state = initial(algorithm, data)
  state = state._replace(assignment=jnp.array([0, 1, 0, 1, 0, 0]))
  key = jax.random.key(5)
  starts = [reference.from_params(state.centers, int(k)) for k in state.assignment]
  trained = reference_round(local, data, starts, range(6), key)
  points = np.stack([reference.flat(w) for w in trained])
  after, _ = jax.jit(algorithm.step)(state, data, helpers.everyone(data), key)
  for k in (0, 1):
    mine = points[np.asarray(state.assignment) == k]
    want = (
      np.median(mine, 0) if aggregation == 'median' else stats.trim_mean(mine, beta)
    )
    got = reference.flat(reference.from_params(after.centers, k))
    assert_close(got, want, rtol=1e-3)


@pytest.mark.parametrize('beta', [0.0, 0.1, 0.34, 0.49, 0.5])
def test_trimmed_mean_matches_scipy(beta):
  rng = np.random.default_rng(0)
  points = rng.normal(size=(23, 4, 3)).astype(np.float32)
  cluster = rng.integers(0, 3, 23)
  counts = rng.random(23) < 0.8
  empty = {'w': jnp.full((4, 4, 3), 7.0)}
  got = trimmed_mean(
    {'w': jnp.asarray(points)}, jnp.asarray(cluster), jnp.asarray(counts), beta, empty
  )['w']
  for k in range(3):
    mine = points[(cluster == k) & counts].astype(np.float64)
    want = np.median(mine, 0) if beta == 0.5 else stats.trim_mean(mine, beta)
    assert_close(got[k], want)
  np.testing.assert_array_equal(got[3], 7.0)


def updates(groups, noise=0.1, seed=0):
  """Inner products of updates that point one way in each group."""
  rng = np.random.default_rng(seed)
  groups = np.asarray(groups)
  ways = rng.normal(size=(groups.max() + 1, 50))
  u = ways[groups] + noise * rng.normal(size=(len(groups), 50))
  return u @ u.T


SPLIT = {'max_clusters': 8, 'eps1': 0.9, 'eps1_scale': 'relative', 'eps2': 0.1,
         'gamma': 0.3, 'min_size': 2, 'linkage': 'complete'}  # fmt: skip


def test_a_second_split_stores_ids_of_clients_not_positions_in_the_parent():
  groups = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
  products = updates(groups)
  assignment, count = np.zeros(12, np.int32), 1
  sizes = []
  for _ in range(3):
    assignment, count = split_clusters(
      products, np.ones(12), assignment, count, **SPLIT
    )
    sizes.append(int(count))
  assert sizes == [2, 3, 3]  # Homogeneous clusters are left alone.
  assert adjusted_rand_score(groups, assignment) == 1.0


def test_splits_leave_alone_what_cannot_be_compared():
  options = {
    'max_clusters': 4, 'eps1': 0.4, 'eps1_scale': 'relative', 'eps2': 0.0,
    'gamma': 0.1, 'min_size': 2, 'linkage': 'complete',
  }  # fmt: skip
  everyone = np.zeros(8, np.int32)
  orthogonal = np.eye(8)  # Every cut is as good as any other.
  overflowed = np.full((8, 8), np.nan)
  np.fill_diagonal(overflowed, np.inf)
  for products in (orthogonal, overflowed):
    assignment, count = split_clusters(products, np.ones(8), everyone, 1, **options)
    assert len(np.unique(assignment)) == count


def test_splits_respect_every_criterion():
  groups = np.array([0, 1] * 4)
  products = updates(groups)
  start = np.zeros(8, np.int32)
  split = lambda **options: int(
    split_clusters(products, np.ones(8), start, 1, **SPLIT | options)[1]
  )
  assert split() == 2
  assert split(eps1=0.1) == 1  # Not converged.
  assert split(eps2=1e3) == 1  # Clients have converged too.
  assert split(gamma=0.99) == 1  # Parts not far enough apart.
  assert split(min_size=8) == 1
  assert split(max_clusters=1) == 1
  products[6:] = products[:, 6:] = 0  # They dropped out.
  after, count = split_clusters(products, np.ones(8), start, 1, **SPLIT)
  assert count == 2
  np.testing.assert_array_equal(after[6:], 0)


@pytest.mark.parametrize('seed', range(4))
def test_minimax_bipartition_is_the_best_of_all(seed):
  u = np.random.default_rng(seed).normal(size=(7, 3))
  u /= np.linalg.norm(u, axis=1, keepdims=True)
  s = u @ u.T
  across = lambda part: s[np.ix_(~part, part)].max()
  every = [np.array([bool(mask >> i & 1) for i in range(7)]) for mask in range(1, 2**6)]
  got = bipartition(s, 'minimax')
  assert across(got) == pytest.approx(min(across(p) for p in every))


def test_fed_cluster_matches_float64_reference():
  # Checks in rounds 2, 4 and 6 part the clients twice, in different clusters.
  data = helpers.federation([30] * 9, groups=np.arange(9) % 3)
  local = helpers.local(batch_size=10, epochs=2)
  criteria = {'eps1': 0.6, 'gamma': 0.4, 'min_size': 2}
  algorithm = algorithms.build(
      'fed_cluster', local, max_clusters=4, eps2=0.0, min_rounds=0, check_every=2,
      weighting='uniform', **criteria,
  )  # fmt: skip
  state = initial(algorithm, data)
  centers = [reference.from_params(state.centers, k) for k in range(4)]
  assignment, count, counts = np.zeros(9, int), 1, []
  for r in range(1, 9):
    key = jax.random.fold_in(jax.random.key(9), r)
    starts = [centers[k] for k in assignment]
    trained = reference_round(local, data, starts, range(9), key)
    points = np.stack([reference.flat(w) for w in trained])
    updates = points - np.stack([reference.flat(c) for c in starts])
    old = np.stack([reference.flat(c) for c in centers])
    new = reference.means(points, assignment, np.ones(9), old)
    if r % 2 == 0:
      before = assignment
      assignment, count = reference.split(updates, before, count, **criteria)
      for k in range(count):
        new[k] = new[before[assignment == k][0]]  # Both parts go on from there.
    centers = [unflatten(c, centers[0]) for c in new]
    counts.append(count)
  state, infos = run(algorithm, data, rounds=8)
  assert sorted(set(counts)) == [1, 2, 3]
  assert counts == [int((i.clusters.sizes > 0).sum()) for i in infos]
  np.testing.assert_array_equal(state.assignment, assignment)
  assert sum(int(i.clusters.moved) for i in infos) > 0
  for k in range(count):
    got = reference.flat(reference.from_params(state.centers, k))
    assert_close(got, reference.flat(centers[k]), rtol=1e-3)


def test_fed_cluster_needs_all_clients():
  algorithm = algorithms.build('fed_cluster', helpers.local())
  data = federation()
  cohort = Cohort(np.array([0, 1], np.int32), everyone=False)
  with pytest.raises(UserError, match='--clients_per_round must be 0'):
    algorithm.step(initial(algorithm, data), data, cohort, jax.random.key(0))


# Identities.


def test_fesem_of_one_center_is_fed_avg():
  data, local = helpers.federation(SIZES), helpers.local()
  fesem = algorithms.build('fesem', local, num_clusters=1, prox_lambda=0.0)
  fed_avg = algorithms.build('fed_avg', local, weighting='uniform')
  begin = initial(fesem, data)
  avg_state = initial(fed_avg, data)._replace(params=begin.centers)
  state = begin
  for r in range(3):
    key = jax.random.fold_in(jax.random.key(9), r)
    state, _ = jax.jit(fesem.step)(state, data, helpers.everyone(data), key)
    avg_state, _ = jax.jit(fed_avg.step)(avg_state, data, helpers.everyone(data), key)
  assert_close(matrix(state.centers), matrix(avg_state.params), rtol=1e-6, atol=1e-7)


def test_non_fed_is_m_independent_runs():
  data, local = helpers.federation(SIZES), helpers.local(chunk=3)
  together, _ = run(algorithms.build('non_fed', local), data)
  for i in range(6):
    x, y = data.client(i)
    alone = data.from_arrays(
      x, y, [len(y)], num_classes=data.num_classes, client_ids=[i]
    )
    # Batches may not depend on other clients: the largest one sets the padding.
    state, _ = run(algorithms.build('non_fed', helpers.local(batch_size=4)), alone)
    assert_close(matrix(state.client_params)[0], matrix(together.client_params)[i])


def test_fed_prox_without_penalty_is_fed_avg():
  data, local = federation(), helpers.local(epochs=2)
  prox, _ = run(algorithms.build('fed_prox', local, prox_mu=0.0), data)
  avg, _ = run(algorithms.build('fed_avg', local), data)
  assert_close(matrix(prox.params), matrix(avg.params), rtol=1e-6, atol=1e-7)


def test_fed_avg_of_one_full_batch_step_is_fed_sgd():
  data = federation()
  one_step = algorithms.build('fed_avg', helpers.local(batch_size=0, steps=1))
  avg, _ = run(one_step, data)
  sgd, _ = run(algorithms.build('fed_sgd', helpers.local(batch_size=4, epochs=7)), data)
  assert_close(matrix(sgd.params), matrix(avg.params), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
  ('name', 'weighting'), [('fed_dws', 'by_examples'), ('fed_dist', 'uniform')]
)
def test_reptile_with_a_whole_server_step_is_fed_avg(name, weighting):
  data, local = federation(), helpers.local()
  dist, _ = run(algorithms.build(name, local, server_learning_rate=1.0), data)
  avg, _ = run(algorithms.build('fed_avg', local, weighting=weighting), data)
  assert_close(matrix(dist.params), matrix(avg.params))


@pytest.mark.parametrize(
  ('variant', 'other'),
  [
    ('model', {'batch_size': 4}),
    ('gradient', {'batch_size': 0, 'steps': 1}),
  ],
)
def test_hypo_cluster_of_one_center_is_fed_avg(variant, other):
  data = federation()
  hypo = algorithms.build(
    'hypo_cluster', helpers.local(), num_clusters=1, variant=variant
  )
  avg = algorithms.build('fed_avg', helpers.local(**other), weighting='uniform')
  state = initial(hypo, data)
  avg_state = initial(avg, data)._replace(params=state.centers)
  for r in range(3):
    key = jax.random.fold_in(jax.random.key(9), r)
    state, _ = jax.jit(hypo.step)(state, data, helpers.everyone(data), key)
    avg_state, _ = jax.jit(avg.step)(avg_state, data, helpers.everyone(data), key)
  assert_close(matrix(state.centers), matrix(avg_state.params), rtol=1e-6, atol=1e-7)


def test_fed_dane_with_equal_clients_is_uniform_fed_avg():
  # Clients with the same data have g - grad F_i(c) = 0.
  one = helpers.federation([6])
  x, y = one.client(0)
  data = one.from_arrays(np.tile(x, (4, 1)), np.tile(y, 4), [6] * 4, num_classes=3)
  local = helpers.local(batch_size=3)
  dane, _ = run(algorithms.build('fed_dane', local, prox_mu=0.0), data)
  avg, _ = run(algorithms.build('fed_avg', local, weighting='uniform'), data)
  assert_close(matrix(dane.params), matrix(avg.params))


def test_fed_dane_of_one_full_batch_step_is_fed_avg_of_who_did_not_drop_out():
  # c - rate * (grad F_i + g - grad F_i), averaged, is c - rate * g.
  data = federation()
  local = helpers.local(batch_size=0, steps=1)._replace(dropout_rate=0.5)
  dane, infos = run(algorithms.build('fed_dane', local, prox_mu=0.0), data)
  avg, _ = run(algorithms.build('fed_avg', local, weighting='uniform'), data)
  assert 0 < min(int(i.trained) for i in infos) < 6
  assert_close(matrix(dane.params), matrix(avg.params))


def test_fed_cluster_that_never_splits_is_fed_avg():
  data, local = federation(), helpers.local()
  cluster, infos = run(algorithms.build('fed_cluster', local, max_clusters=1), data)
  avg, _ = run(algorithms.build('fed_avg', local), data)
  assert_close(matrix(cluster.centers), matrix(avg.params), rtol=1e-6, atol=1e-7)
  assert infos[-1].clusters.sizes.tolist() == [6]


def test_robust_without_trimming_is_kmeans_and_the_mean():
  data, local = federation(), helpers.local()
  options = {'num_clusters': 2, 'init_epochs': 3}
  robust = algorithms.build(
    'robust', local, trim=0.0, beta=0.0, init_tolerance=0.0, **options
  )
  fesem = algorithms.build('fesem', local, prox_lambda=0.0, **options)
  state, like = initial(robust, data), initial(fesem, data)
  np.testing.assert_array_equal(state.assignment, like.assignment)
  assert_close(matrix(state.centers), matrix(like.centers))
  # While no client moves, FeSEM's round is the same too.
  after, _ = jax.jit(robust.step)(
    state, data, helpers.everyone(data), jax.random.key(1)
  )
  other, info = jax.jit(fesem.step)(
    like, data, helpers.everyone(data), jax.random.key(1)
  )
  assert int(info.clusters.moved) == 0
  assert_close(matrix(after.centers), matrix(other.centers))


# Properties of every method.


def skip_if_full_participation_only(index):
  if METHODS[index][0] == 'fed_cluster':
    pytest.skip('FedCluster compares the updates of all clients')


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_a_round_overwrites_the_state_keeps_its_structure_and_never_asks_the_host(
  index,
):
  algorithm, data, state, _ = base_run(index)
  step = jax.jit(algorithm.step, donate_argnums=0, keep_unused=True)
  cohort, count = helpers.everyone(data), len(jax.tree.leaves(state))
  program = step.lower(state, data, cohort, jax.random.key(0)).compile()
  assert helpers.num_aliased(program) == count
  assert not helpers.asks_host(program)
  describe = lambda s: jax.tree.map(lambda x: (x.shape, x.dtype), s)
  before = describe(state)
  state = jax.tree.map(jnp.array, state)  # `base_run` keeps its own.
  for r in range(3):  # Compiled once: another shape would be an error.
    state, info = program(state, data, cohort, jax.random.key(r))
  assert describe(state) == before
  assert int(info.trained) == 6
  assert int(info.failed) == 0
  assert np.isfinite(info.train_loss)


def test_a_program_that_calls_the_host_would_be_noticed():
  shape = jax.ShapeDtypeStruct((), jnp.int32)
  ask = jax.jit(lambda x: jax.pure_callback(lambda x: x, shape, x))
  assert helpers.asks_host(ask.lower(1).compile())


@pytest.mark.parametrize('name', ['non_fed', 'fesem'])
def test_clients_outside_the_cohort_keep_what_they_have(name):
  data = federation()
  algorithm = algorithms.build(name, helpers.local())
  if name == 'fesem':
    algorithm = algorithms.build(name, helpers.local(), num_clusters=2)
  state = initial(algorithm, data)
  cohort = Cohort(np.array([1, 4, 6], np.int32), everyone=False)  # 6 is nobody.
  after, info = jax.jit(algorithm.step)(state, data, cohort, jax.random.key(1))
  outside = np.array([0, 2, 3, 5])
  np.testing.assert_array_equal(
    matrix(after.client_params)[outside], matrix(state.client_params)[outside]
  )
  assert (
    matrix(after.client_params)[[1, 4]] != matrix(state.client_params)[[1, 4]]
  ).any()
  assert int(info.trained) == 2
  if name == 'fesem':
    np.testing.assert_array_equal(after.assignment[outside], state.assignment[outside])


@pytest.mark.slow
@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_a_client_that_fails_is_left_out_and_counted(index):
  skip_if_full_participation_only(index)
  algorithm, data, state, _ = base_run(index)
  x = np.asarray(data.x).copy()
  x[: SIZES[0]] = np.nan  # Client 0 fails after a sound start.
  broken = data.__class__(**{**vars(data), 'x': x})
  cohort = Cohort(np.arange(6, dtype=np.int32), everyone=False)
  without = Cohort(np.array([1, 2, 3, 4, 5, 6], np.int32), everyone=False)
  step = jax.jit(algorithm.step)
  a, info = step(state, broken, cohort, jax.random.key(1))
  b, _ = step(state, data, without, jax.random.key(1))
  assert int(info.failed) == 1
  assert int(info.trained) == 5
  assert np.isfinite(info.train_loss)
  assert_close(deployed(algorithm, a, data), deployed(algorithm, b, data))


# Planted clusters.


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'options', 'rounds'),
  [
    ('hypo_cluster', {'num_clusters': 2, 'init_restarts': 50}, 15),
    ('robust', {'num_clusters': 2, 'init_epochs': 5}, 3),
    ('fed_cluster', {'min_size': 10, 'eps1': 0.6, 'eps2': 0.3, 'gamma': 0.4}, 20),
  ],
)
@pytest.mark.parametrize('seed', range(3))
def test_clustered_methods_recover_planted_clusters(name, options, rounds, seed):
  groups = np.arange(20) % 2
  data = helpers.federation([60] * 20, seed=seed, groups=groups)
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  algorithm = algorithms.build(name, local, **options)
  state, _ = run(algorithm, data, rounds=rounds, seed=seed)
  assert adjusted_rand_score(groups, state.assignment) == 1.0


@pytest.mark.parametrize('seed', range(3))
def test_fesem_recovers_planted_clusters(seed):
  groups = np.arange(16) % 4
  data = helpers.federation([60] * 16, seed=seed, groups=groups)
  local = helpers.local(batch_size=10, epochs=2, rate=0.3, hidden=())
  algorithm = algorithms.build('fesem', local, num_clusters=4, init_epochs=3)
  state, infos = run(algorithm, data, rounds=5, seed=seed)
  assert adjusted_rand_score(groups, state.assignment) == 1.0
  assert int(infos[-1].clusters.moved) == 0
  assert infos[-1].train_loss < infos[0].train_loss


# Mistakes.


def test_mistakes_name_the_flag():
  local = helpers.local()
  with pytest.raises(
    UserError, match=r'--algorithm=fedavg is unknown; choose one of non_fed, fed_sgd'
  ):
    algorithms.build('fedavg', local)
  with pytest.raises(
    UserError, match='--prox_lambda does not apply to --algorithm=fed_avg'
  ):
    algorithms.build('fed_avg', local, prox_lambda=1.0)
  with pytest.raises(UserError, match='--weighting=mean is unknown'):
    algorithms.build('fed_avg', local, weighting='mean')
  with pytest.raises(
    UserError, match=r'--cluster_on=dense9 is unknown.*all, dense0, logits'
  ):
    algorithms.build('fesem', local, cluster_on='dense9')
  with pytest.raises(UserError, match='--num_clusters=0 must be at least 1'):
    algorithms.build('fesem', local, num_clusters=0)
  with pytest.raises(UserError, match='--reseed_empty needs the models of all'):
    algorithms.build('fesem', local, reseed_empty=True, client_state='streamed')
  with pytest.raises(UserError, match='--num_clusters=7 is more than the 6 clients'):
    algorithms.build('fesem', local, num_clusters=7).init(
      jax.random.key(0), helpers.federation(SIZES)
    )


@pytest.mark.parametrize('init_clients', [0, 3])
@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('options', [{}, {'weighting': 'by_examples'},
                                     {'cluster_on': 'logits'}])  # fmt: skip
def test_streamed_clients_give_what_stacked_ones_do(options, devices, init_clients):
  local = helpers.local(chunk=2, devices=devices)
  data = sharding.replicate(federation(), local.mesh)
  results = {}
  for state in ('stacked', 'streamed'):
    algorithm = algorithms.build(
        'fesem', local, num_clusters=2, client_state=state,
        init_clients=init_clients, **options,
    )  # fmt: skip
    results[state] = run(algorithm, data)
  (stacked, infos), (streamed, others) = results['stacked'], results['streamed']
  assert streamed.client_params is None
  assert jax.tree.leaves(stacked.client_params)[0].shape[0] == len(SIZES)
  np.testing.assert_array_equal(stacked.assignment, streamed.assignment)
  assert_close(matrix(stacked.centers), matrix(streamed.centers), rtol=1e-6, atol=1e-7)
  for a, b in zip(infos, others, strict=True):
    assert_close(a.clusters.objective, b.clusters.objective, rtol=1e-5)


def test_streamed_equation_6_is_that_of_the_stack():
  data = federation()
  for weighting in ('uniform', 'by_examples'):
    algorithm = algorithms.build(
      'fesem', helpers.local(chunk=4), num_clusters=2, weighting=weighting
    )
    state, infos = run(algorithm, data)
    want = reference.objective(
      matrix(state.client_params), matrix(state.centers), np.asarray(state.assignment)
    )
    assert_close(infos[-1].clusters.objective, want, rtol=1e-4)


def test_more_clients_than_the_first_clustering_sees_go_to_its_centers():
  data = helpers.federation([40] * 40, groups=np.arange(40) % 2)
  local = helpers.local(chunk=8, batch_size=10, rate=0.5, hidden=())
  algorithm = algorithms.build(
    'fesem', local, num_clusters=2, init_clients=10, init_epochs=20
  )
  state = initial(algorithm, data)
  assert adjusted_rand_score(np.arange(40) % 2, state.assignment) == 1.0
  nearest = reference.nearest(matrix(state.client_params), matrix(state.centers))
  np.testing.assert_array_equal(nearest, state.assignment)
