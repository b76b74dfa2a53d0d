"""The flags of all experiment binaries, and the configuration they give.

A configuration is a plain dict of flag name -> value that determines a run; it
is what `config.json` holds and what `run.run` takes.
"""

from typing import Any

from absl import flags

from fesem_jax.data import array_forms, tables
from fesem_jax.utils.errors import UserError, argument

from . import methods, plugins, schedules
from .flag_tables import GROUPS

# Where and how fast a run happens and what is said of it, which never changes its
# results: no part of its configuration. Data split by client do, and then the library
# says so in it.
_NOT_CONFIGURATION = (
  'data_dir', 'checkpoint_every', 'resume', 'tensorboard', 'log_to', 'callbacks',
  'quiet', 'save_models', 'report', 'target', 'client_metrics_every', 'regret',
  'clients_per_chunk', 'shared_start', 'runs_at_once', 'num_devices',
  'data_placement',
  'coordinator_address', 'process_id', 'num_processes',
)  # fmt: skip

# A configuration names these only where they are not the default: those of runs before
# there were such flags are then equal to those of today.
_ONLY_WHERE_GIVEN = (
  'client_rows', 'dirichlet_min_examples', 'labels_per_client', 'lognormal_sigma',
  'power_law_sigma',
  'noise_variance', 'label_swaps', 'rotations', 'rotation_sampling',
  'image_corruptions', 'corruption_strength', 'cifar100_labels', 'emnist_split',
  'text_stride', 'task',
  'init_from', 'init_layers', 'train_layers', 'freeze_layers', 'momentum', 'nesterov',
  'weight_decay', 'adam_beta1', 'adam_beta2', 'adam_epsilon', 'clip_norm',
  'local_lr_schedule', 'augment', 'ratings_by', 'device_profile', 'drift_rounds',
  'drift_start', 'hub_image_side', 'hub_config', 'label_column',
  'client_column', 'cluster_column', 'split_column', 'drop_columns', 'standardize',
  'vocabulary', 'synthetic_features', 'synthetic_classes', 'synthetic_difference',
  'synthetic_distance', 'synthetic_mix', 'stop_after', 'dp', 'dp_clip',
  'dp_noise_multiplier', 'dp_delta', 'compress', 'error_feedback', 'batch_stats',
  'keep_optimizer_state', 'client_work',
)  # fmt: skip

# Columns of a data frame that a function of the user's own returns.
_COLUMNS = ('label_column', 'client_column', 'cluster_column', 'split_column')

# What a model of the user's own is called with.
OWN_MODEL = ('example_shape', 'num_classes')


def define(*groups: str) -> None:
  """Defines the flags of some of `GROUPS`, by default of all but of processes."""
  chosen = groups or [name for name in GROUPS if name != 'processes']
  for group in chosen:
    for flag in GROUPS[group]:
      define_one = getattr(flags, f'DEFINE_{flag.kind}')
      define_one(flag.name, default=flag.default, help=flag.help, **flag.extra)
  if 'run' in chosen:
    flags.DEFINE_alias('attack', 'corrupt')
    flags.DEFINE_alias('attack_fraction', 'corrupt_fraction')


def define_data_dir() -> None:
  """Defines --data_dir of a binary that reads other data flags from runs."""
  flags.DEFINE_string(
    'data_dir',
    '',
    'Folder of the data files, as of fesem-run; default: the environment '
    'variable FESEM_DATA_DIR, else ./data.',
  )


def _configuration_flags(*groups: str) -> list[str]:
  """Names of the flags of some groups that belong to a configuration."""
  names = [flag.name for group in groups for flag in GROUPS[group]]
  return [name for name in names if name not in _NOT_CONFIGURATION]


def data_names() -> list[str]:
  """Names of a configuration that decide the data."""
  return _configuration_flags('data')


def common_names() -> list[str]:
  """Names of a configuration that do not depend on the method."""
  return _configuration_flags('data', 'model', 'training', 'run')


def common() -> dict[str, Any]:
  """The part of a configuration that does not depend on the method."""
  return {name: flags.FLAGS[name].value for name in common_names()}


def filled(config: dict[str, Any]) -> dict[str, Any]:
  """A configuration with the defaults that it does not name."""
  defaults = {
    flag.name: flag.default
    for group in GROUPS.values()
    for flag in group
    if flag.name in _ONLY_WHERE_GIVEN
  }
  return defaults | config


def without_defaults(config: dict[str, Any]) -> dict[str, Any]:
  """A configuration as `config.json` holds it; the inverse of `filled`."""
  defaults = filled({})
  return {k: v for k, v in config.items() if k not in defaults or v != defaults[k]}


def with_whole_schedules(config: dict[str, Any]) -> dict[str, Any]:
  """A configuration whose schedules say over how many rounds or steps they go."""
  full = filled(config)
  of_steps = schedules.resolved_local(full['local_lr_schedule'], full['local_steps'])
  return without_defaults(
    full
    | {
      'lr_schedule': schedules.resolved(full['lr_schedule'], full['rounds']),
      'local_lr_schedule': of_steps,
    }
  )


def data_choice(config: dict[str, Any] | None = None) -> dict[str, Any]:
  """Arguments of `data.load`, from a configuration or from the flags."""
  names = _configuration_flags('data')
  given = {n: flags.FLAGS[n].value for n in names} if config is None else filled(config)
  values: dict[str, Any] = {n: given[n] for n in names}
  name, options = values['dataset'], values.pop('dataset_options')
  if config is None:
    options = plugins.resolved('dataset', name, options)
  if plugins.is_own(name):
    with plugins.running('dataset', name):
      held = plugins.load('dataset', name)(**options)
      label, client, cluster, split = (values[option] for option in _COLUMNS)
      dropped = tuple(values['drop_columns'])
      columns = tables.Columns(label, client, cluster, split, dropped)
      arrays = array_forms.named(held, f'--dataset={name}', columns)
    values |= dict.fromkeys(_COLUMNS, '') | {'drop_columns': [], 'arrays': arrays}
    with plugins.running('dataset', name):
      plugins.check_reproducible(name, options, arrays)
  return values | {'partition': values['partition'] or ''}


def machine() -> dict[str, Any]:
  """Flags that decide where and how fast a run happens, never its results."""
  found = [name for name in _NOT_CONFIGURATION if name in flags.FLAGS]
  return {name: flags.FLAGS[name].value for name in found}


def progress() -> bool | None:
  """The `progress` of `simulate`: False with --quiet, else None."""
  return False if machine().get('quiet') else None


def chosen_options() -> dict[str, Any]:
  """The method options that were given on the command line."""
  values = {name: flags.FLAGS[name].value for name in methods.all_options()}
  return {name: value for name, value in values.items() if value is not None}


def configuration(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
  """A whole configuration, the method's defaults filled in.

  Raises `UserError` on an option that the method does not have, or on an own method,
  model or data set that cannot be used.
  """
  methods.check_options(algorithm, options)
  options = methods.typed(algorithm, options)
  shared = common()
  for option in methods.options(algorithm):
    if option in shared or option in _NOT_CONFIGURATION:
      raise UserError(
        f'{argument("algorithm", algorithm)}: its option {option} has the name of a '
        'flag of all methods; rename it.'
      )
  for kind, arguments in (('model', OWN_MODEL), ('dataset', ())):
    text = shared[f'{kind}_options']
    shared[f'{kind}_options'] = plugins.resolved(kind, shared[kind], text, *arguments)
  shared = without_defaults(shared)
  return {**shared, 'algorithm': algorithm, **methods.options(algorithm), **options}
