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
from fesem_jax.models.mixture import LOG_WEIGHTS, MODELS, as_one_model
from fesem_jax.models.porting import to_state_dict
from fesem_jax.run.results import export
from fesem_jax.run.results.client_table import position_of
from fesem_jax.tasks import CLASSIFICATION, TASKS, Task
from fesem_jax.utils import processes
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

  def standardized(self, x: Any) -> np.ndarray:
    """Examples with the columns that the models were trained on."""
    if not self.mean:
      return np.asarray(x)
    check(np.ndim(x) == 2, f'x: must have shape [B, {len(self.mean)}]')
    return (np.asarray(x, np.float64) - self.mean) / self.deviation


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
    return cls(shared, personal, choice, mixture, np.asarray(names), examples, model)

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
    flat = {path: np.asarray(x[k]) for path, x in self.shared.items()}
    return self._as_model(
      flat | {path: np.asarray(x[i]) for path, x in self.personal.items()}
    )

  def predict(
    self,
    x: Any,
    *,
    client: str | None = None,
    cluster: int | None = None,
    probabilities: bool = False,
    names: bool = False,
  ) -> np.ndarray:
    """Predicts with one model.

    Args:
      x: [B, ...] examples as they were before `data.load` scaled or standardized them,
        which is done here.
      client: name of the client whose deployed model predicts.
      cluster: number of the center instead; neither takes the global model.
      probabilities: whether to return them in place of labels or tokens.
      names: whether to return the names of classes, of data that have them.

    Returns:
      [B] int32 labels, or [B, L] float32 probabilities; with several labels [B, L]
      int32, 1 for those that an example has, or probabilities; of a regression [B, L]
      float32; of sequences [B, S] int32 next tokens, or [B, S, L] float32
      probabilities.

    Raises:
      UserError: as `params`, on examples that do not fit, if the model is not known, on
        probabilities of a regression, or on names of classes without any.
    """
    task, x = self.task, self.examples.standardized(x)
    outputs = self.outputs(x, client=client, cluster=cluster)
    if probabilities:
      check(task.probabilities, f'probabilities: a {task.name} has none; leave it out')
      assert task.probabilities is not None
      return task.probabilities(outputs)
    labels, class_names = task.predict(outputs), self.examples.class_names
    if not names:
      return labels
    is_named = task is CLASSIFICATION and len(class_names) > 0
    check(is_named, 'names: classes have none; leave it out')
    return np.array(class_names)[labels]

  def outputs(
    self, x: Any, *, client: str | None = None, cluster: int | None = None
  ) -> np.ndarray:
    """Outputs [B, ...] float32 of one model, such as logits; see `predict`."""
    x = self.examples.checked(x)
    model = self._model
    i, _ = self._position(client, cluster)
    if i is not None and self.mixture is not None:
      weights = np.log(np.maximum(self.mixture[i], np.float32(1e-30)))
      params = {MODELS: self._as_model(self.shared), LOG_WEIGHTS: weights}
      model = self._mixture_model
    else:
      params = self.params(client=client, cluster=cluster)
    # One batch size or a few, so that little is compiled.
    width = min(_BATCH, 1 << max(0, len(x) - 1).bit_length())
    kind = self.examples
    none = self.task.output_shape(0, kind.shape, kind.num_classes)
    logits = [np.zeros(none, np.float32)]
    for first in range(0, len(x), width):
      batch = x[first : first + width]
      padded = np.zeros((width, *kind.shape), x.dtype)
      padded[: len(batch)] = batch
      padded_logits = _logits(model.apply, params, padded, kind.scale)
      logits.append(np.asarray(padded_logits)[: len(batch)])
    return np.concatenate(logits)

  def save_model(
    self,
    path: str | pathlib.Path,
    *,
    client: str | None = None,
    cluster: int | None = None,
  ) -> None:
    """Writes one model to a file that other programs and `--init_from` read.

    Args:
      path: ends in `.npz` (layers named as `dense0/kernel`) or `.safetensors`
        (`dense0.kernel`).
      client: see `params`.
      cluster: see `params`.

    Raises:
      UserError: as `params`, on another ending, or if the file cannot be written.
    """
    layers = by_layer(self.params(client=client, cluster=cluster))
    export.write(pathlib.Path(path), layers, dataclasses.asdict(self.examples))

  def to_torch(
    self, *, client: str | None = None, cluster: int | None = None
  ) -> dict[str, np.ndarray]:
    """One model as the arrays of a PyTorch `state_dict`; see `porting.to_state_dict`.

    Raises:
      UserError: as `params`, or on a model that is none of `models.build`.
    """
    return to_state_dict(self._model, self.params(client=client, cluster=cluster))

  @property
  def _model(self) -> Model:
    check(self.model, 'model: not in config.json; pass the Model to load_run')
    assert self.model is not None
    return self.model

  @functools.cached_property
  def _mixture_model(self) -> Model:
    used = ClientModels(self.centers, mixture=jnp.asarray(self.mixture))
    return as_one_model(self._model, used)[0]

  def _position(
    self, client: str | None, cluster: int | None
  ) -> tuple[int | None, int | None]:
    """Place of the client, None for a center; and number of its model or center."""
    if client is not None:
      i = position_of(client, self.names)
      return i, 0 if self.choice is None else int(self.choice[i])
    count = self.num_models
    check(not self.personal, 'client: missing; clients have personal layers')
    check(cluster is not None or count == 1, f'cluster: missing; there are {count}')
    cluster = cluster or 0
    check(0 <= cluster < count, f'cluster: must be below {count}; got {cluster}')
    return None, int(cluster)

  def _as_model(self, flat: dict[str, np.ndarray]) -> Params:
    """Layers by path as the model's own pytree."""
    if self.model is None:
      return unflatten_dict(flat, sep='/')
    shapes = jax.eval_shape(self.model.init, jax.random.key(0))
    layers = [flat[path] for path in by_layer(shapes)]
    return jax.tree.unflatten(jax.tree.structure(shapes), layers)


@functools.partial(jax.jit, static_argnums=0)
def _logits(apply: Any, params: Params, x: jax.Array, scale: float) -> jax.Array:
  # Accelerators would round factors to 10 bits or fewer.
  with jax.default_matmul_precision('highest'):
    return apply(params, x.astype(jnp.float32) * scale)
