"""The models that clients deploy, on the host: selection by name, and prediction."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from fesem_jax.core.algorithm import ClientModels
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.types import Model, Params
from fesem_jax.models.mixture import LOG_WEIGHTS, MODELS, as_one_model
from fesem_jax.models.porting import to_state_dict
from fesem_jax.run.results import export
from fesem_jax.run.results.client_table import position_of
from fesem_jax.tasks import CLASSIFICATION, TASKS, Task
from fesem_jax.utils.errors import check

_BATCH = 256  # Examples that are classified at once.


def by_layer(params: Params) -> dict[str, Any]:
  """Path of each array, as `dense0/kernel`, -> the array; layers that are None lack."""
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {jax.tree_util.keystr(p, simple=True, separator='/'): x for p, x in leaves}


@dataclasses.dataclass(frozen=True)
class Examples:
  """The kind of examples that a model takes."""

  shape: tuple[int, ...]  # of one example
  dtype: str  # 'uint8' or 'float32', as in `FederatedData`
  scale: float  # multiplier that brings them to the models' range
  num_classes: int  # L
  task: str = CLASSIFICATION.name  # what the models are for; see `tasks.TASKS`
  class_names: tuple[str, ...] = ()  # [L], where classes have names
  # Of each column [F], where columns were standardized.
  mean: tuple[float, ...] = ()
  deviation: tuple[float, ...] = ()

  @classmethod
  def of(cls, data: FederatedData) -> 'Examples':
    """The form of the examples of a split."""
    names = tuple(map(str, data.info.class_names or ()))
    kind = data.example_shape, str(data.x.dtype), data.scale, data.num_classes
    return cls(*kind, data.task, names, *moments_of(data))

  def output_shape(self, count: int) -> tuple[int, ...]:
    """Shape of a model's outputs for some examples."""
    return TASKS[self.task].output_shape(count, self.shape, self.num_classes)

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


def moments_of(data: FederatedData) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Means and deviations of columns that were standardized; empty elsewhere."""
  if data.info.standardization is None:
    return (), ()
  mean, deviation = (tuple(x.tolist()) for x in data.info.standardization)
  return mean, deviation


@dataclasses.dataclass(frozen=True, eq=False)
class DeployedModels:
  """The models that clients deploy, each stored once, in the order of the user's data.

  Attributes:
    shared: path of each shared layer -> [R, ...], one global model or R centers.
    own: path of each layer of clients' own -> [M, ...].
    choice: [M] int which of the R models each client uses; None if all use the first.
    mixture: [M, R] weights of each client's mixture, or None.
    names: [M] strings, the clients.
    examples: what the models take.
    model: how they compute; None where it is not known, and then nothing is
      predicted.
  """

  shared: dict[str, np.ndarray]
  own: dict[str, np.ndarray]
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
    shared, own = by_layer(models.shared), by_layer(models.own)
    choice, mixture = (
      None if x is None else np.asarray(x) for x in (models.choice, models.mixture)
    )
    return cls(shared, own, choice, mixture, np.asarray(names), examples, model)

  @property
  def num_models(self) -> int:
    """R; 0 where no layer is shared."""
    return len(next(iter(self.shared.values()), ()))

  @property
  def centers(self) -> Params:
    """[R, ...] the global model (R = 1) or the centers; None where nothing is shared.

    Layers of clients' own are not in it.
    """
    return unflatten_dict(self.shared, sep='/') if self.shared else None

  def params(self, *, client: str | None = None, cluster: int | None = None) -> Params:
    """One model.

    Args:
      client: name of the client whose deployed model it is.
      cluster: number of the center, from 0. Neither names the global model.

    Returns:
      Parameters as the model's own pytree, or nested dicts where the model is not
      known.

    Raises:
      UserError: on an unknown client or cluster, or if there is no single such model.
    """
    i, k = self._position(client, cluster)
    is_mixture = i is not None and self.mixture is not None
    check(not is_mixture, 'client: deploys a mixture of models; name a cluster')
    flat = {path: np.asarray(x[k]) for path, x in self.shared.items()}
    return self._as_model(
      flat | {path: np.asarray(x[i]) for path, x in self.own.items()}
    )

  def predict(
    self,
    x: Any,
    *,
    client: str | None = None,
    cluster: int | None = None,
    probabilities: bool = False,
  ) -> np.ndarray:
    """Predicts with one model.

    Args:
      x: [B, ...] examples as they were before `data.load` scaled or standardized them,
        which is done here.
      client: name of the client whose deployed model is asked.
      cluster: number of the center instead; neither asks the global model.
      probabilities: whether to return them in place of labels or tokens.

    Returns:
      [B] int32 labels, or [B, L] float32 probabilities; with several labels [B, L]
      int32, 1 for those that an example has, or probabilities; of a regression [B, L]
      float32; of sequences [B, S] int32 next tokens, or [B, S, L] float32
      probabilities.

    Raises:
      UserError: as `params`, on examples that do not fit, if the model is not known, or
        on probabilities of a regression.
    """
    task, x = self.task, self.examples.standardized(x)
    outputs = self.outputs(x, client=client, cluster=cluster)
    if not probabilities:
      return task.predict(outputs)
    check(task.probabilities, f'probabilities: a {task.name} has none; leave it out')
    assert task.probabilities is not None
    return task.probabilities(outputs)

  @property
  def task(self) -> Task:
    """Task of the models."""
    return TASKS[self.examples.task]

  def outputs(
    self, x: Any, *, client: str | None = None, cluster: int | None = None
  ) -> np.ndarray:
    """Outputs [B, ...] float32 of one model, such as logits; see `predict`."""
    x = self.examples.checked(x)
    model = self.model
    check(model, 'model: not in config.json; pass the Model to load_run')
    assert model is not None
    i, _ = self._position(client, cluster)
    if i is not None and self.mixture is not None:
      model = self._mixture_model
      weights = np.log(np.maximum(self.mixture[i], np.float32(1e-30)))
      stack = self._as_model(self.shared)
      params = {MODELS: stack, LOG_WEIGHTS: weights}
    else:
      params = self.params(client=client, cluster=cluster)
    # One batch size or a few, so that little is compiled.
    width = min(_BATCH, 1 << max(0, len(x) - 1).bit_length())
    logits = [np.zeros(self.examples.output_shape(0), np.float32)]
    for first in range(0, len(x), width):
      batch = x[first : first + width]
      padded = np.zeros((width, *self.examples.shape), x.dtype)
      padded[: len(batch)] = batch
      padded_logits = _logits(model.apply, params, padded, self.examples.scale)
      logits.append(np.asarray(padded_logits)[: len(batch)])
    return np.concatenate(logits)

  def save_model(
    self,
    path: str | pathlib.Path,
    *,
    client: str | None = None,
    cluster: int | None = None,
  ) -> None:
    """Writes one model to a file that other programs read.

    Args:
      path: ends in `.safetensors` (layers named as `dense0.kernel`) or `.msgpack`
        (read by `flax.serialization.from_bytes` or `msgpack_restore`).
      client: see `params`.
      cluster: see `params`.

    Raises:
      UserError: as `params`, on another ending, or if the file cannot be written.
    """
    params = self.params(client=client, cluster=cluster)
    about = {
      'scale': repr(self.examples.scale),
      'example_shape': ','.join(map(str, self.examples.shape)),
      'num_classes': str(self.examples.num_classes),
      'task': self.examples.task,
      **{
        name: ','.join(map(str, getattr(self.examples, name)))
        for name in ('class_names', 'mean', 'deviation')
      },
    }
    export.write(pathlib.Path(path), params, by_layer(params), about)

  def to_torch(
    self, *, client: str | None = None, cluster: int | None = None
  ) -> dict[str, np.ndarray]:
    """One model as the arrays of a PyTorch `state_dict`; see `porting.to_state_dict`.

    Raises:
      UserError: as `params`, or on a model that is none of `models.build`.
    """
    check(self.model, 'model: not in config.json; pass the Model to load_run')
    assert self.model is not None
    return to_state_dict(self.model, self.params(client=client, cluster=cluster))

  @functools.cached_property
  def _mixture_model(self) -> Model:
    assert self.model is not None
    used = ClientModels(self.centers, mixture=jnp.asarray(self.mixture))
    return as_one_model(self.model, used)[0]

  def _position(
    self, client: str | None, cluster: int | None
  ) -> tuple[int | None, int | None]:
    """Place of the client, None for a center; and number of its model or center."""
    if client is not None:
      i = position_of(client, self.names)
      return i, 0 if self.choice is None else int(self.choice[i])
    count = self.num_models
    check(not self.own, 'client: missing; clients have personal layers')
    check(cluster is not None or count == 1, f'cluster: missing; there are {count}')
    cluster = cluster or 0
    check(0 <= cluster < count, f'cluster: must be below {count}; got {cluster}')
    return None, int(cluster)

  def _as_model(self, flat: dict[str, np.ndarray]) -> Params:
    """Layers by path as the model's own pytree."""
    if self.model is None:
      return unflatten_dict(flat, sep='/')
    shapes = jax.eval_shape(self.model.init, jax.random.key(0))
    wanted = [flat[path] for path in by_layer(shapes)]
    return jax.tree.unflatten(jax.tree.structure(shapes), wanted)


class ModelAccess:
  """Methods of what has models that clients deploy, `deployed`."""

  deployed: Any  # `DeployedModels`

  @property
  def centers(self) -> Params:
    """[R, ...] the global model or the centers; see `DeployedModels.centers`."""
    return self.deployed.centers

  def params(self, *, client: str | None = None, cluster: int | None = None) -> Params:
    """One model; see `DeployedModels.params`."""
    return self.deployed.params(client=client, cluster=cluster)

  def predict(self, x: Any, **which: Any) -> np.ndarray:
    """Labels of examples, or probabilities; see `DeployedModels.predict`."""
    return self.deployed.predict(x, **which)

  def save_model(self, path: str | pathlib.Path, **which: Any) -> None:
    """Writes one model to a file; see `DeployedModels.save_model`."""
    self.deployed.save_model(path, **which)

  def to_torch(
    self, *, client: str | None = None, cluster: int | None = None
  ) -> dict[str, np.ndarray]:
    """One model as PyTorch's `state_dict`; see `DeployedModels.to_torch`."""
    return self.deployed.to_torch(client=client, cluster=cluster)


@functools.partial(jax.jit, static_argnums=0)
def _logits(apply: Any, params: Params, x: jax.Array, scale: float) -> jax.Array:
  # Accelerators would round factors to 10 bits or fewer.
  with jax.default_matmul_precision('highest'):
    return apply(params, x.astype(jnp.float32) * scale)
