"""Checkpoints of a run: the whole state, atomically, with Orbax."""

import json
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from fesem_jax.base import UserError
from fesem_jax.writer import write_atomically

# Flags that may change between two runs of one workdir: they decide where and
# how fast a run happens, how long it is and what is reported, not its results.
FREE_FLAGS = frozenset(
  [
    'workdir',
    'data_dir',
    'resume',
    'rounds',
    'clients_per_chunk',
    'num_devices',
    'tensorboard',
    'checkpoint_every',
    'patience',
  ]
)


# What a flag is in a version of this package that does not have it.
_NONE = 'no such flag'


def claim_workdir(workdir: pathlib.Path, config: dict[str, Any], resume: bool) -> None:
  """Makes the folder this run's own, or recognizes it as such.

  Args:
    workdir: made if absent.
    config: flag name -> value.
    resume: whether an existing run may be continued.

  Raises:
    UserError: if the folder holds a run with another configuration, holds a
      run at all while `resume` is False, or cannot be written.
  """
  path = workdir / 'config.json'
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    exists = path.exists()
  except OSError as e:
    raise UserError(f'Cannot write to --workdir={workdir}: {e.strerror}.') from e
  if not exists:
    write_atomically(path, json.dumps(config, indent=1, sort_keys=True) + '\n')
    return
  if not resume:
    raise UserError(
      f'--workdir={workdir} already holds a run and --resume is off; choose '
      'another folder or delete this one.'
    )
  try:
    old = json.loads(path.read_text())
  except (OSError, ValueError) as e:
    raise UserError(f'{path} is damaged ({e}); choose another --workdir.') from e
  differing = [
    f'--{name} (there: {old.get(name, _NONE)}, now: {config.get(name, _NONE)})'
    for name in sorted(set(old) | set(config))
    if name not in FREE_FLAGS and old.get(name) != config.get(name)
  ]
  if differing:
    raise UserError(
      f'--workdir={workdir} holds a run with another configuration: '
      f'{"; ".join(differing)}. Choose another folder or delete this one.'
    )


class Checkpoints:
  """The newest checkpoints of a workdir.

  Args:
    workdir: existing folder; checkpoints go to `workdir/checkpoints/ROUND`.
  """

  def __init__(self, workdir: pathlib.Path):
    self._dir = (workdir / 'checkpoints').absolute()
    self._manager = ocp.CheckpointManager(
      self._dir,
      options=ocp.CheckpointManagerOptions(
        max_to_keep=2, create=True, enable_async_checkpointing=False
      ),
    )

  def latest_round(self) -> int | None:
    """Number of rounds done at the newest checkpoint, or None."""
    return self._manager.latest_step()

  def save(self, rounds_done: int, state: Any) -> None:
    """Saves the state; a checkpoint exists whole or not at all.

    Raises:
      UserError: if it cannot be written, e.g. on a full disk; older
        checkpoints are untouched.
    """
    if self._manager.latest_step() == rounds_done:
      return
    try:
      self._manager.save(rounds_done, args=ocp.args.StandardSave(state), force=True)
      self._manager.wait_until_finished()
    except (OSError, ValueError, RuntimeError) as e:
      raise UserError(
        f'Cannot save a checkpoint in {self._dir}: {_first_line(e)} '
        'Earlier checkpoints are intact; free some space and run the same '
        'command again.'
      ) from e

  def restore(self, like: Any) -> Any:
    """The newest checkpoint's state.

    Args:
      like: state with the shapes, dtypes and shardings to restore to.

    Raises:
      UserError: if the checkpoint is damaged or of other shapes.
    """
    rounds_done = self._manager.latest_step()
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    try:
      return self._manager.restore(rounds_done, args=ocp.args.StandardRestore(abstract))
    except Exception as e:  # Orbax raises many kinds for a damaged checkpoint.
      raise UserError(
        f'Checkpoint {self._dir / str(rounds_done)} is damaged, or belongs to a '
        f'--num_devices that does not divide 8 ({_first_line(e)}). If the device '
        'count is the same as before, delete that folder to continue from the one '
        'before it.'
      ) from e

  def close(self) -> None:
    """Releases Orbax's threads."""
    self._manager.close()


def _first_line(e: Exception) -> str:
  text = (str(e) or type(e).__name__).splitlines()[0]
  return text[:200]
