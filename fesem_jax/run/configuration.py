"""Whether two configurations belong to the same run."""

import pathlib
from typing import Any

from fesem_jax.utils.errors import WorkdirError

# What may change between two runs of one workdir: it decides where and how fast a
# run happens, how long it is and what is reported, not its results. A change of
# `own_code` only gives a warning.
_FREE = {
  'workdir', 'data_dir', 'resume', 'rounds', 'clients_per_chunk', 'shared_start',
  'num_devices', 'tensorboard', 'checkpoint_every', 'patience', 'own_code',
}  # fmt: skip


def check_same(
  workdir: pathlib.Path, old: dict[str, Any], config: dict[str, Any]
) -> None:
  """Raises `WorkdirError` naming each entry that differs and may not."""
  differing = []
  for name in sorted((old.keys() | config.keys()) - _FREE):
    # Configurations name the placement only where it is not this one.
    default = 'replicated' if name == 'data_placement' else 'absent'
    there, now = old.get(name, default), config.get(name, default)
    if there == now:
      continue
    if str(there) == str(now):  # "20" and 20.
      there, now = repr(there), repr(now)
    differing.append(
      'the data (its examples, labels or clients differ)'
      if name == 'data_digest'
      else f'`{name}` (there: {there}, now: {now})'
    )
  if differing:
    raise WorkdirError(
      f'`workdir={workdir}` holds a run with another configuration: '
      f'{"; ".join(differing)}. Choose another folder or delete this one.'
    )
