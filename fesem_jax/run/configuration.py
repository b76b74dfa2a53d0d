"""Whether two configurations belong to the same run."""

import pathlib
from typing import Any

from fesem_jax.utils.errors import UserError

# What may change between two runs of one workdir: it decides where and how fast a
# run happens, how long it is and what is reported, not its results.
_FREE = frozenset(
  [
    'workdir',
    'data_dir',
    'resume',
    'rounds',
    'clients_per_chunk',
    'shared_start',
    'num_devices',
    'tensorboard',
    'checkpoint_every',
    'patience',
  ]
)

# What is shown where a configuration lacks a name, e.g. one of another version.
_NONE = 'absent'
_UNSAID = {
  'data_placement': 'replicated',
  'precision': 'highest',
  'initializer': 'flax',
  # Earlier versions wrote these numbers in place of the server optimizer's defaults.
  'server_learning_rate': 0.0,
  'server_beta1': 0.9,
  'server_beta2': 0.99,
  'server_tau': 1e-3,
}


def check_same(
  workdir: pathlib.Path, old: dict[str, Any], config: dict[str, Any]
) -> None:
  """Refuses to go on with a run under another configuration.

  Args:
    workdir: that holds the run, for the error.
    old: configuration that was saved there.
    config: configuration of now.

  Raises:
    UserError: naming each entry that differs and may not.
  """

  def said(c: dict[str, Any], name: str) -> Any:
    if name not in _UNSAID or c.get(name) is not None:
      return c.get(name, _NONE)
    if name == 'server_beta1' and c.get('server_optimizer') == 'adagrad':
      return 0.0
    return _UNSAID[name]

  def differs(name: str) -> str:
    there, now = said(old, name), said(config, name)
    if name == 'data_digest':
      return 'the data (its examples, labels or clients differ)'
    if str(there) == str(now):  # "20" and 20.
      there, now = repr(there), repr(now)
    return f'`{name}` (there: {there}, now: {now})'

  differing = [
    differs(name)
    for name in sorted(set(old) | set(config))
    if name not in _FREE and said(old, name) != said(config, name)
  ]
  if differing:
    raise UserError(
      f'`workdir={workdir}` holds a run with another configuration: '
      f'{"; ".join(differing)}. Choose another folder or delete this one.'
    )
