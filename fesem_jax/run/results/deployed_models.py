"""The models that clients deploy, on the host: selection by name, and prediction."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from fesem_jax.core import offloading
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model, Params
from fesem_jax.models.porting import to_state_dict
from fesem_jax.tasks import CLASSIFICATION, TASKS, Task
from fesem_jax.utils import processes
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import check

_BATCH = 256  # Examples that are classified at once.


def by_layer(params: Params) -> dict[str, Any]:
  """Path of each array, as `dense0/kernel`, -> the array; layers that are None lack."""
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {jax.tree_util.keystr(p, simple=True, separator='/'): x for p, x in leaves}


def fetched(models: ClientModels, places: np.ndarray) -> ClientModels:
  """Models as arranged, on the host and in the user's order; see `Result.places`."""
  models = offloading.as_arrays(processes.on_host(models))
  choice, personal, mixture = jax.tree.map(
    lambda x: np.asarray(x)[places], (models.choice, models.personal, models.mixture)
  )
  return ClientModels(models.shared, choice, personal, mixture)


@dataclasses.dataclass(frozen=True)
class Examples:
  """The kind of examples that a model takes."""

  shape: tuple[int, ...]  # of one example
  dtype: str  # 'uint8' or 'float32', as in `FederatedData`
  scale: float  # multiplier that brings them to the models' range
  num_classes: int  # L
  task: str = CLASSIFICATION.name  # a key of `tasks.TASKS`
  class_names: tuple[str, ...] = ()  # [L], where classes have names
  # Of each column [F], where columns were standardized.
  mean: tuple[float, ...] = ()
  deviation: tuple[float, ...] = ()

  @classmethod
  def of(cls, data: FederatedData) -> 'Examples':
    """The examples of a split."""
    names = tuple(map(str, data.info.class_names or ()))
    kind = data.example_shape, str(data.x.dtype), data.scale, data.num_classes
    moments = [tuple(x.tolist()) for x in data.info.standardization or ()]
    return cls(*kind, data.task, names, *moments)

  def checked(self, x: Any) -> np.ndarray:
    """Examples [B, ...] in the dtype of the training data; raises `UserError`."""
    x = np.asarray(x)
    is_batch = x.ndim > 0 and x.shape[1:] == self.shape
    check(is_batch, f'x: must have shape [B, *{self.shape}]; got {x.shape}')
    if self.dtype == 'uint8':  # Scaled floats would become 0.
      fits = x.dtype.kind in 'bui' and (not x.size or 0 <= x.min() <= x.max() <= 255)
      check(fits, f'x: must be integers from 0 to 255; got {x.dtype}')
    return x.astype(self.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class DeployedModels:
  """The models that clients deploy, each stored once, in the order of the user's data.

  Attributes:
    shared: path of each shared layer -> [R, ...], one global model or R centers.
    personal: path of each personal layer -> [M, ...].
    choice: [M] int which of the R models each client uses; None if all use the first.
    mixture: [M, R] weights of each client's mixture, or None.
    names: [M] names of the clients.
    examples: what the models take.
    model: how they compute; None if unknown, which rules out predictions.
  """

  shared: dict[str, np.ndarray]
  personal: dict[str, np.ndarray]
  choice: np.ndarray | None
  mixture: np.ndarray | None
  names: np.ndarray
  examples: Examples
  model: Model | None = None

  @classmethod
  def of(
    cls,
    models: ClientModels,
    names: np.ndarray,
    examples: Examples,
    model: Model | None = None,
  ) -> 'DeployedModels':
    """From `ClientModels` on the host."""
    shared, personal = by_layer(models.shared), by_layer(models.personal)
    choice, mixture = (
      None if x is None else np.asarray(x) for x in (models.choice, models.mixture)
    )
    return cls(shared, personal, choice, mixture, names, examples, model)

  @property
  def num_models(self) -> int:
    """R; 0 where no layer is shared."""
    return len(next(iter(self.shared.values()), ()))

  @property
  def centers(self) -> Params:
    """[R, ...] the global model (R = 1) or the centers, without personal layers.

    None where nothing is shared.
    """
    return unflatten_dict(self.shared, sep='/') if self.shared else None

  @property
  def task(self) -> Task:
    """Task of the models."""
    return TASKS[self.examples.task]

  def params(self, *, client: str | None = None, cluster: int | None = None) -> Params:
    """One model.

    Args:
      client: name of the client whose deployed model it is.
      cluster: number of the center, from 0. Neither names the global model.

    Returns:
      Parameters as the model's own pytree; nested dicts where the model is unknown.

    Raises:
      UserError: on an unknown client or cluster, or if there is no single such model.
    """
    i, k = self._position(client, cluster)
    is_mixture = i is not None and self.mixture is not None
    check(not is_mixture, 'client: deploys a mixture of models; name a cluster')
    layers = {path: np.asarray(x[k]) for path, x in self.shared.items()}
    layers |= {path: np.asarray(x[i]) for path, x in self.personal.items()}
    if self.model is None:
      return unflatten_dict(layers, sep='/')
    shapes = jax.eval_shape(self.model.init, jax.random.key(0))
    expected = by_layer(shapes)
    for path in sorted(expected.keys() | layers.keys()):
      ours, theirs = (x[path].shape if path in x else None for x in (expected, layers))
      check(ours == theirs, f'model: layer {path} is {ours}, in the run {theirs}')
    return jax.tree.unflatten(jax.tree.structure(shapes), map(layers.get, expected))

  def predict(
    self, x: Any, *, probabilities: bool = False, names: bool = False, **which: Any
  ) -> np.ndarray:
    """Predicts with one model.

    Args:
      x: [B, ...] examples as they were before `data.load` scaled or standardized them,
        which is done here.
      probabilities: whether to return them in place of labels or tokens.
      names: whether to return the names of classes, of data that have them.
      **which: `client` or `cluster`; see `params`. A client may deploy a mixture.

    Returns:
      [B] int32 labels, or [B, L] float32 probabilities; with several labels [B, L]
      int32, 1 for those that an example has, or probabilities; of a regression [B, L]
      float32; of sequences [B, S] int32 next tokens, or [B, S, L] float32
      probabilities.

    Raises:
      UserError: as `params`, on examples that do not fit, if the model is not known, on
        probabilities of a regression, or on names of classes without any.
    """
    task, of = self.task, self.examples
    if of.mean:
      check(np.ndim(x) == 2, f'x: must have shape [B, {len(of.mean)}]')
      x = (np.asarray(x, np.float64) - of.mean) / of.deviation
    outputs = self.outputs(x, **which)
    if probabilities:
      check(task.probabilities, f'probabilities: a {task.name} has none; leave it out')
      assert task.probabilities is not None
      return task.probabilities(outputs)
    is_named = task is CLASSIFICATION and of.class_names
    check(not names or is_named, 'names: classes have none; leave it out')
    labels = task.predict(outputs)
    return np.array(of.class_names)[labels] if names else labels

  def outputs(self, x: Any, **which: Any) -> np.ndarray:
    """Outputs [B, ...] float32 of one model, such as logits.

    `x` are [B, ...] examples as in training; for `which`, see `predict`.
    """
    x, of, model = self.examples.checked(x), self.examples, self._known_model()
    i, _ = self._position(**which)
    if i is not None and self.mixture is not None:
      centers = jnp.stack([self.outputs(x, cluster=k) for k in range(self.num_models)])
      weights = jnp.log(jnp.maximum(self.mixture[i], 1e-30))
      return np.asarray(model.task.mix(centers, weights))
    params = self.params(**which)
    # One batch size or a few, so that little is compiled.
    width = min(_BATCH, 1 << max(0, len(x) - 1).bit_length())
    padding = max(1, -(-len(x) // width)) * width - len(x)
    padded = np.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
    parts = [
      _logits(model.apply, params, batch, of.scale)
      for batch in padded.reshape(-1, width, *of.shape)
    ]
    return np.concatenate([np.asarray(part) for part in parts])[: len(x)]

  def save_model(self, path: str | pathlib.Path, **which: Any) -> None:
    """Writes one model to a file `.npz`, which NumPy and `--init_from` read.

    Its arrays are called as `dense0/kernel`. `which` are `client` or `cluster`; raises
    `UserError` as `params`, on another ending, or if the file cannot be written.
    """
    path = pathlib.Path(path)
    check(path.suffix == '.npz', f'{path}: must end in .npz')
    with replacing(path) as file:
      np.savez_compressed(file, allow_pickle=False, **by_layer(self.params(**which)))

  def to_torch(self, **which: Any) -> dict[str, np.ndarray]:
    """One model as the arrays of a PyTorch `state_dict`; see `porting.to_state_dict`.

    `which` are `client` or `cluster`. Raises `UserError` as `params`, or on a model
    that is none of `models.build`.
    """
    return to_state_dict(self._known_model(), self.params(**which))

  def _known_model(self) -> Model:
    check(self.model, 'model: not in config.json; pass the Model to load_run')
    assert self.model is not None
    return self.model

  def _position(
    self, client: str | None = None, cluster: int | None = None
  ) -> tuple[int | None, int]:
    """Place of the client, None for a center; and number of its model or center."""
    if client is not None:
      places = np.flatnonzero(self.names == client)
      check(len(places), f'client: unknown name {client!r}; see clients.csv')
      check(len(places) < 2, f'client: {len(places)} clients are called {client!r}')
      i = int(places[0])
      return i, 0 if self.choice is None else int(self.choice[i])
    count = self.num_models
    check(not self.personal, 'client: missing; clients have personal layers')
    check(cluster is not None or count == 1, f'cluster: missing; there are {count}')
    cluster = cluster or 0
    check(0 <= cluster < count, f'cluster: must be below {count}; got {cluster}')
    return None, int(cluster)


@functools.partial(jax.jit, static_argnums=0)
def _logits(apply: Any, params: Params, x: jax.Array, scale: float) -> jax.Array:
  # Accelerators would round factors to 10 bits or fewer.
  with jax.default_matmul_precision('highest'):
    return apply(params, x.astype(jnp.float32) * scale)
