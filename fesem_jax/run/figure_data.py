"""Data about a finished run's clients, for figures without the data or the models."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fesem_jax.core import prng_streams, sharding, stratified
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.gram_matrices import centered_gram
from fesem_jax.core.types import Cohort, Params
from fesem_jax.data import label_counts
from fesem_jax.models.mixture import as_one_model, optimizer_of
from fesem_jax.run import programs
from fesem_jax.run.programs import Program, run_once
from fesem_jax.training.cohort import train_cohort
from fesem_jax.training.trained import Reduction
from fesem_jax.utils import processes, progress_lines

_MAX_CLIENTS = 400  # As in Fig. 4 of the paper.
_COMPONENTS = 50
# Numbers that stand for a larger model. A prime: the parameters of one unit lie a
# power of two apart, and are not to be added to each other.
_SKETCH = 16381
_SHEET_CLIENTS, _SHEET_IMAGES = 6, 12


def principal_components(gram: np.ndarray, components: int) -> np.ndarray:
  """PCA coordinates [S, components] from centered inner products [S, S]."""
  values, vectors = np.linalg.eigh(np.asarray(gram, np.float64))
  top = np.argsort(values)[::-1][:components]
  return vectors[:, top] * np.sqrt(np.maximum(values[top], 0))


def sketch(key: jax.Array, stack: Params, origin: Params) -> jax.Array:
  """[C, min(P, 16381)] float32: models less an origin, in few numbers.

  Random signs keep inner products on average, and distances within a few percent.
  """
  shifted = jax.tree.leaves(jax.tree.map(jnp.subtract, stack, origin))
  flat = jnp.concatenate([x.reshape(x.shape[0], -1) for x in shifted], axis=1)
  if flat.shape[1] <= _SKETCH:
    return flat
  signs = jax.random.rademacher(key, flat.shape[1:], jnp.float32)
  signed = jnp.pad(flat * signs[None], ((0, 0), (0, -flat.shape[1] % _SKETCH)))
  return signed.reshape(flat.shape[0], -1, _SKETCH).sum(axis=1)


def local_models(
  algorithm: Algorithm, state: Any, train: FederatedData, seed: int
) -> tuple[Program, tuple[Any, ...]]:
  """A program for local models of a method with clusters, and its arguments.

  Up to 400 clients train once more from the model they deploy, as in a round but
  without noise, compression or lies of bad clients. `state` may be its shapes.
  """
  count, train = len(train.info.names), dataclasses.replace(train, attack=None)
  local = algorithm.local._replace(dropout_rate=0.0, sends=None)
  key = prng_streams.folded(jax.random.key(seed), prng_streams.PORTRAIT)
  key = sharding.replicate(key, local.mesh)
  rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
  if train.shard_rows is None:
    sampled = np.sort(rng.permutation(count)[:_MAX_CLIENTS])
    padding = -len(sampled) % local.mesh.size
    ids = np.concatenate([sampled, np.full(padding, train.num_clients)])
  else:
    ids = stratified.drawn_on_host(rng, _MAX_CLIENTS, train, local.mesh)

  def gram(state, train, ids, key):
    deployed = algorithm.deployed(state, train)
    cohort = Cohort(ids, everyone=False)
    model, used, layers = as_one_model(local.model, deployed)
    first = used._replace(choice=None).of(Cohort(jnp.zeros(1, jnp.int32), False))
    origin, signs_key = first.params(1), prng_streams.fold(key, prng_streams.SIGNS)

    def describe(trained, starts, total):
      return sketch(signs_key, trained.params, origin), total

    reduction = Reduction(describe, sums=(), keep=False)
    if algorithm.train is not None:
      trained = algorithm.train(local, state, train, cohort, key, reduction)
    else:
      optimizer = optimizer_of(local.optimizer, layers)
      trained = train_cohort(
        local._replace(model=model, optimizer=optimizer), used.of(cohort), train,
        cohort, key, reduction, layers=layers,
      )  # fmt: skip
    counts = trained.took_part()
    products = centered_gram(trained.folded, counts, local.mesh)
    return products, counts, deployed.clusters()

  args = (state, train, jnp.asarray(ids, jnp.int32), key)
  what, options = 'local models for the figures', run_once(local, train, runs=2)
  return programs.compiled(what, algorithm, gram, *args, **options), args


def draw(
  program: Program, args: tuple[Any, ...], places: np.ndarray
) -> dict[str, np.ndarray]:
  """Principal components of `local_models`; `sampled` are the clients' positions."""
  with progress_lines.waiting_for(program.what):
    products, counts, clusters = processes.on_host(program(*args))
  ids = np.asarray(args[2])
  # Weights beyond 1e19 overflow here.
  kept = np.flatnonzero(counts & np.isfinite(products.diagonal()))
  products = products[np.ix_(kept, kept)]
  coordinates = principal_components(products, _COMPONENTS)
  variance = np.square(coordinates).sum(axis=0) / max(np.trace(products), 1e-30)
  return {
    'assignment': np.asarray(clusters)[places],
    'sampled': np.argsort(places)[ids[kept]],
    'coordinates': coordinates.astype(np.float32),
    'variance': variance.astype(np.float32),
  }


def client_data(train: FederatedData) -> dict[str, np.ndarray]:
  """Names, true clusters and counts of classes of the clients."""
  info, out = train.info, dict[str, Any](label_counts=label_counts(train))
  out |= {'names': info.names, 'truth': info.clusters}
  out |= {'truth_names': info.cluster_names, 'class_names': info.class_names}
  return {name: np.array(x) for name, x in out.items() if x is not None}


def sheets(
  picture: dict[str, np.ndarray], train: FederatedData
) -> dict[str, np.ndarray]:
  """Images of the clients nearest to the mean of their cluster, by label.

  `sheet_clients` [K, 6] are -1 where a cluster has fewer.
  """
  sampled, coordinates = picture['sampled'], picture['coordinates']
  if len(train.example_shape) not in (2, 3):
    return {}
  count, assignment = picture['assignment'].max() + 1, picture['assignment'][sampled]
  shape = (count, _SHEET_CLIENTS, _SHEET_IMAGES, *train.example_shape)
  images = np.zeros(shape, train.x.dtype)
  clients = np.full((count, _SHEET_CLIENTS), -1)
  for k in np.unique(assignment):
    members = np.flatnonzero(assignment == k)
    center = coordinates[members].mean(axis=0)
    distance = np.square(coordinates[members] - center).sum(axis=1)
    typical = sampled[members[np.argsort(distance)[:_SHEET_CLIENTS]]]
    clients[k, : len(typical)] = typical
    for i, client in enumerate(typical):
      x, y = train.client(int(client))
      chosen = np.linspace(0, len(y) - 1, min(len(y), _SHEET_IMAGES)).astype(int)
      images[k, i, : len(chosen)] = x[np.argsort(y, kind='stable')[chosen]]
  return {'sheet_images': images, 'sheet_clients': clients}
