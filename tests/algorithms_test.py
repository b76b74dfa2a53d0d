"""Every method against references, identities and shared properties."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fesem_jax import algorithms, tree
from fesem_jax.base import Cohort, UserError
from tests import helpers, reference

SIZES = [6, 3, 9, 5, 8, 4]
GROUPS = [0, 1, 0, 1, 0, 1]

# Every method with options that exercise it; shared properties hold for all.
METHODS = [
  ('fed_avg', {}),
  ('fed_avg', {'weighting': 'uniform'}),
  ('non_fed', {}),
  ('fesem', {'num_clusters': 2}),
  ('fesem', {'num_clusters': 3, 'weighting': 'by_examples', 'prox_weighting': 'paper'}),
  ('fesem', {'num_clusters': 2, 'cluster_on': 'logits', 'prox_lambda': 0.0}),
]
IDS = [f'{name}-{"-".join(map(str, options.values()))}' for name, options in METHODS]


def run(algorithm, data, rounds=3, cohort=None, seed=0):
  """Final state and all infos of a few compiled rounds."""
  state = jax.jit(algorithm.init)(jax.random.key(seed), data)
  step, infos = jax.jit(algorithm.step), []
  for r in range(1, rounds + 1):
    chosen = cohort(r) if cohort else helpers.everyone(data)
    state, info = step(state, data, chosen, jax.random.fold_in(jax.random.key(9), r))
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
  return matrix(algorithm.client_params(state, jnp.arange(data.num_clients)))


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
  model_key, train_key, _ = jax.random.split(key, 3)
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
  truth = [mask_bit for mask_bit in (best >> i & 1 for i in range(6))]
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


# Properties of every method.


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_structure_and_dtypes_are_stable_and_nothing_recompiles(index):
  algorithm, data, state, _ = base_run(index)
  traces = []

  def counted(state, data, cohort, key):
    traces.append(1)
    return algorithm.step(state, data, cohort, key)

  step = jax.jit(counted)
  describe = lambda s: jax.tree.map(lambda x: (x.shape, x.dtype), s)
  before = describe(state)
  for r in range(3):
    state, info = step(state, data, helpers.everyone(data), jax.random.key(r))
  assert describe(state) == before
  assert len(traces) == 1
  assert int(info.trained) == 6
  assert int(info.failed) == 0
  assert np.isfinite(info.train_loss)


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
@pytest.mark.parametrize(('chunk', 'devices'), [(1, 1), (2, 2)])
def test_chunk_size_and_device_count_change_nothing(index, chunk, devices):
  a, data, state_a, infos_a = base_run(index)
  name, options = METHODS[index]
  b = algorithms.build(name, helpers.local(chunk=chunk, devices=devices), **options)
  state_b, infos_b = run(b, data)
  assert_close(deployed(a, state_a, data), deployed(b, state_b, data))
  assert_close([i.train_loss for i in infos_a], [i.train_loss for i in infos_b])


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_permuting_clients_permutes_results_and_nothing_else(index):
  order = np.array([4, 0, 5, 2, 1, 3])
  algorithm, data, state, infos = base_run(index)
  permuted = data.reorder(order)
  other_state, other_infos = run(algorithm, permuted)
  if hasattr(state, 'assignment'):  # The numbering of clusters may differ.
    assert adjusted_rand_score(state.assignment[order], other_state.assignment) == 1.0
  assert_close(
    deployed(algorithm, state, data)[order], deployed(algorithm, other_state, permuted)
  )
  assert_close([i.train_loss for i in infos], [i.train_loss for i in other_infos])


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_padding_with_empty_clients_changes_nothing(index):
  algorithm, data, state, infos = base_run(index)
  padded = data.reorder(np.arange(6), num_clients=8)
  other, other_infos = run(algorithm, padded)
  assert_close(deployed(algorithm, state, data), deployed(algorithm, other, padded)[:6])
  for a, b in zip(infos, other_infos, strict=True):
    assert_close(a.train_loss, b.train_loss)
    if a.clusters is not None:
      np.testing.assert_array_equal(sorted(a.clusters.sizes), sorted(b.clusters.sizes))
      assert_close(a.clusters.objective, b.clusters.objective)


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_order_of_the_cohort_does_not_matter(index):
  algorithm, data, _, _ = base_run(index)
  ids = np.array([3, 0, 4], np.int32)
  cohort = lambda chosen: lambda r: Cohort(chosen, everyone=False)
  state, infos = run(algorithm, data, cohort=cohort(ids))
  other, other_infos = run(algorithm, data, cohort=cohort(ids[::-1].copy()))
  assert_close(deployed(algorithm, state, data), deployed(algorithm, other, data))
  assert int(infos[0].trained) == 3
  assert_close([i.train_loss for i in infos], [i.train_loss for i in other_infos])


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_all_clients_as_a_cohort_is_full_participation(index):
  algorithm, data, full, _ = base_run(index)
  ids = np.array([3, 0, 4, 1, 2, 5], np.int32)
  state, _ = run(algorithm, data, cohort=lambda r: Cohort(ids, everyone=False))
  assert_close(deployed(algorithm, state, data), deployed(algorithm, full, data))


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


@pytest.mark.parametrize('index', range(len(METHODS)), ids=IDS)
def test_a_client_that_fails_is_left_out_and_counted(index):
  algorithm, data, state, _ = base_run(index)
  x = np.asarray(data.x).copy()
  x[: SIZES[0]] = 1e30  # Client 0 fails after a sound start.
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
    UserError, match='--algorithm=fedavg is unknown.*non_fed, fed_avg'
  ):
    algorithms.build('fedavg', local)
  with pytest.raises(
    UserError, match='--prox_lambda does not apply to --algorithm=fed_avg'
  ):
    algorithms.build('fed_avg', local, prox_lambda=1.0)
  with pytest.raises(UserError, match='--weighting=mean is unknown'):
    algorithms.build('fed_avg', local, weighting='mean')
  with pytest.raises(
    UserError, match='--cluster_on=dense9 is unknown.*all, dense0, logits'
  ):
    algorithms.build('fesem', local, cluster_on='dense9')
  with pytest.raises(UserError, match='--num_clusters=0 must be at least 1'):
    algorithms.build('fesem', local, num_clusters=0)
  with pytest.raises(UserError, match='--num_clusters=7 is more than the 6 clients'):
    algorithms.build('fesem', local, num_clusters=7).init(
      jax.random.key(0), helpers.federation(SIZES)
    )
