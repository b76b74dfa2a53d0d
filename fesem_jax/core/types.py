"""The types of models and cohorts, and the axis letters of all docstrings.

M clients, S cohort (clients of a round), K centers, B batch, N examples of a client, T
all examples, P parameters of a model, L classes, C clients side by side (a chunk), D
devices. `[M, ...]` before a pytree: every leaf has that leading axis, as a stack of
models has.
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

  `_replace(apply=...)` drops `layers` and `apply_with`, which describe the old
  function, and needs a new `apply_train`, or None.

  Attributes:
    init: key -> params.
    apply: (params, x [B, ...]) -> float32 outputs: logits [B, L] of a classifier or of
      several labels, targets [B, L], or logits [B, S, L] of sequences.
    loss: (outputs, y as in `FederatedData`) -> [B] float32, whose mean clients
      minimize. For a mixture, the outputs are its own; see `Task.mix`.
    metrics: (name, (outputs, y) -> [B] float32) pairs, in addition to the task's.
    layers: names of the layers in execution order, if the units of each are inputs of
      the next alone; else empty. `matching` needs them.
    apply_with: (params, x, multiply) -> outputs, with dense products by `multiply`:
      (path of the layer, inputs [B, ..., I]) -> [B, ..., O], or None to leave it to the
      layer. Unused kernels may be missing. For `shared_start`; or None.
    apply_train: (params, x, key) -> outputs in training, e.g. with Dropout, or None.
    task: task of the model, which must be the task of the data.
    statistics: paths, as norm/mean, of running statistics, as of BatchNorm, which a
      local step replaces. `apply_train` is then (params, x, key, weights [B]) ->
      (outputs, these parameters); examples of weight 0 must not count.
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
    """The task by whose metrics the model is measured and ranked."""
    return tasks.with_loss(self.task, self.loss)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cohort:
  """The clients that take part in a round.

  Attributes:
    ids: [S] int32 positions in the data, which a run orders by work (`cohort_of` takes
      the user's ids); M is an empty slot. Device d trains the d-th part.
    everyone: True if `ids` is 0..M-1, which needs no gather.
    round: [] int32 round, from 0, for `LocalTraining.rate`; None outside of rounds.
    keep_clusters: [] bool whether clients keep the clusters that they start from; None
      is never. See `wrappers.with_reclustering`.
    selected: True if a `selection.Selection` chose the clients.
  """

  ids: HostOrDeviceArray
  everyone: bool = dataclasses.field(metadata={'static': True})
  round: HostOrDeviceArray = None
  keep_clusters: HostOrDeviceArray = None
  selected: bool = dataclasses.field(default=False, metadata={'static': True})
