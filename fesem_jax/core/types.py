"""The types of models and cohorts, and the axis letters of all docstrings.

Axis letters: M clients, S cohort (clients of a round), K centers, B batch,
N examples of one client, T all examples, P parameters of one model,
L classes, C clients trained side by side (a chunk), D devices.

`[M, ...]` before a pytree means that every leaf has that leading axis. A *stack* of
models is one pytree whose leaves have a leading axis, not a list.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fesem_jax import tasks
from fesem_jax.tasks import CLASSIFICATION, Loss, Task
from fesem_jax.utils.errors import check

Params = Any  # pytree of float32 arrays: one model, or a stack of models.
HostOrDeviceArray = Any  # np.ndarray on the host, jax.Array on devices.


class _Functions(NamedTuple):
  init: Callable[[jax.Array], Params]
  apply: Callable[[Params, jax.Array], jax.Array]
  loss: Loss = CLASSIFICATION.loss
  metrics: tuple[tuple[str, Loss], ...] = ()
  layers: tuple[str, ...] = ()
  apply_with: Callable[..., jax.Array] | None = None
  apply_train: Callable[..., Any] | None = None
  task: Task = CLASSIFICATION
  statistics: tuple[str, ...] = ()
  made_by: Any = None


class Model(_Functions):
  """A model as pure functions.

  `_replace(apply=...)` makes another function, which `layers` and `apply_with` of the
  old one do not describe: they are dropped unless they are replaced too. A model with
  `apply_train`, which trains in place of `apply`, needs a new one, or None.

  Attributes:
    init: key -> params.
    apply: (params, x [B, ...]) -> outputs, float32: logits [B, L] of a classifier,
      or of several labels, targets [B, L] of a regression, logits [B, S, L] at every
      position of sequences.
    loss: (outputs, targets y as in `FederatedData`) -> [B] float32, the loss of each
      example. Clients train on its mean; methods that choose models by their loss or
      need its gradient use it as well. For clients that use a mixture of models, the
      outputs are those of the mixture; see `Task.mix`.
    metrics: (name, function) pairs, evaluated in addition to the metrics of the task; a
      function is (outputs, y) -> [B] float32, one value for each example.
    layers: names of the layers in execution order, if the units of each layer are
      inputs of the next layer only, as in `models.build`; otherwise empty. `matching`
      can match units only if they are given.
    apply_with: (params, x, multiply) -> logits as `apply`, but with the products of
      dense layers computed by `multiply`: (path of the layer in params, inputs
      [B, ..., I]) -> [B, ..., O], or None to leave the product to the layer. Kernels
      that are not used may be missing in params. Required by `shared_start`; None if
      not supported.
    apply_train: (params, x, key) -> logits as `apply`, for local training that draws
      random numbers, e.g. for Dropout; None if it draws none. Fine-tuning also uses it;
      evaluation, and losses by which clients choose a model, use `apply`.
    task: of the model, which must be the task of the data.
    statistics: paths, as norm/mean, of the parameters that are running statistics of
      batches, as BatchNorm has them. No optimizer, penalty or correction changes them:
      a local step puts the new statistics in their place. `apply_train` is then
      (params, x, key, weights [B]) -> (logits, params): only these parameters, after
      the batch. Examples of weight 0 fill up a batch and must not count in either.
    made_by: see `Algorithm`.
  """

  __slots__ = ()

  def _replace(self, **changes: Any) -> 'Model':
    if 'apply' in changes:
      fits = self.apply_train is None or 'apply_train' in changes
      check(fits, 'apply: replaces its apply_train too; give both, or apply_train=None')
      changes = {'layers': (), 'apply_with': None} | changes
    return super()._replace(**changes)

  __replace__ = _replace

  @property
  def measured_as(self) -> Task:
    """The task by whose figures the model is measured and ranked."""
    return tasks.with_loss(self.task, self.loss)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cohort:
  """The clients that take part in a round.

  Attributes:
    ids: [S] int32 positions in the data, which a run orders by size:
      `data.client_ids[ids]` are the clients in the order in which the user gave them,
      and `cohort_of` makes a cohort of these. M is an empty slot, so that S can be
      padded to a multiple of the device count. If data are split by client, device d
      trains the d-th part of `ids`, which must be clients that it holds; it treats
      others as empty slots. See `stratified.evenly`.
    everyone: True if `ids` is 0..M-1 (full participation), which needs no gather.
    round: [] int32 number of the round, counted from 0, for schedules over rounds
      (`LocalTraining.rate`); None outside of rounds, e.g. before the first.
    keep_clusters: [] bool whether clients of a method with centers keep the clusters
      that they start the round from; None is never. `wrappers.with_reclustering` sets
      it.
    selected: True if a `selection.Selection` chose the clients, so that no others take
      part in the round.
  """

  ids: HostOrDeviceArray
  everyone: bool = dataclasses.field(metadata={'static': True})
  round: HostOrDeviceArray = None
  keep_clusters: HostOrDeviceArray = None
  selected: bool = dataclasses.field(default=False, metadata={'static': True})
