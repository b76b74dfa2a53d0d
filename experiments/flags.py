"""The flags of all experiment binaries, and the configuration they give.

A configuration is a plain dict of flag name -> value that determines a run; it
is what `config.json` holds and what `run.run` takes.
"""

import functools
from typing import Any

from absl import flags

from fesem_jax.data import array_forms, tables
from fesem_jax.utils.errors import UserError, argument

from . import methods, plugins, schedules
from .flag_tables import GROUPS

# Topics of flags that determine the results of a run, and its configuration. The others
# say where and how fast it happens and what is said of it. Data split by client change
# results, and then the library says so in the configuration.
_DETERMINE = ('data', 'partition', 'model', 'training', 'privacy', 'run', 'evaluation')
_OTHERS = (
  'data_dir',
  *(flag.name for t in ('output', 'machine', 'processes') for flag in GROUPS[t]),
)

# Flags of the first versions, which every configuration names. It names later ones only
# where they are not the default, so that runs of before are equal to those of today.
_ALWAYS = (
  'dataset', 'dataset_options', 'source', 'partition', 'num_clients',
  'examples_per_client', 'min_examples', 'partition_groups', 'disjoint_groups',
  'dirichlet_alpha', 'classes_per_client', 'background', 'tfds_name', 'hub_name',
  'hub_client_column', 'hub_label_column', 'synthetic_alpha', 'synthetic_beta',
  'synthetic_noise', 'seed', 'model', 'model_options', 'hidden', 'initializer',
  'optimizer', 'learning_rate', 'lr_schedule', 'batch_size', 'local_epochs',
  'local_steps', 'precision', 'rounds', 'clients_per_round', 'dropout_rate', 'corrupt',
  'corrupt_fraction', 'finetune_epochs', 'eval_every', 'evaluate_on', 'unseen_fraction',
  'patience',
)  # fmt: skip
# Columns of a data frame that a function of the user's own returns.
_COLUMNS = ('label_column', 'client_column', 'cluster_column', 'split_column')


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


def define_output(default: str, text: str) -> None:
  """Defines --output, and --out, its earlier name."""
  flags.DEFINE_string('output', default, text)
  flags.DEFINE_string('out', None, 'Earlier name of --output.')


def output() -> str:
  """The value of --output; one of --out counts, with a warning."""
  f = flags.FLAGS
  if f.out is None:
    return f.output
  if f['output'].present:
    raise UserError('--out is an earlier name of --output; leave it out.')
  print('Warning: --out is now --output.')
  return f.out


def define_data_dir() -> None:
  """Defines --data_dir of a binary that reads other data flags from runs."""
  flags.DEFINE_string(
    'data_dir',
    '',
    'Folder of the data files, as of fesem-run; default: the environment '
    'variable FESEM_DATA_DIR, else ./data.',
  )


def data_names() -> list[str]:
  """Names of a configuration that decide the data."""
  return [
    flag.name
    for topic in ('data', 'partition')
    for flag in GROUPS[topic]
    if flag.name not in _OTHERS
  ]


def common_names() -> list[str]:
  """Names of a configuration that do not depend on the method."""
  names = (flag.name for topic in _DETERMINE for flag in GROUPS[topic])
  return [name for name in names if name not in _OTHERS]


def common() -> dict[str, Any]:
  """The part of a configuration that does not depend on the method."""
  return {name: flags.FLAGS[name].value for name in common_names()}


def filled(config: dict[str, Any]) -> dict[str, Any]:
  """A configuration with the defaults that it does not name."""
  return _later_defaults() | config


@functools.cache
def _later_defaults() -> dict[str, Any]:
  named = set(common_names()) - set(_ALWAYS)
  each = (flag for topic in _DETERMINE for flag in GROUPS[topic])
  return {flag.name: flag.default for flag in each if flag.name in named}


def without_defaults(config: dict[str, Any]) -> dict[str, Any]:
  """A configuration as `config.json` holds it; the inverse of `filled`."""
  defaults = _later_defaults()
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
  names = data_names()
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
  names = [name for name in _OTHERS if name in flags.FLAGS]
  return {name: flags.FLAGS[name].value for name in names}


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
    if option in shared or option in _OTHERS:
      raise UserError(
        f'{argument("algorithm", algorithm)}: its option {option} has the name of a '
        'flag of all methods; rename it.'
      )
  for kind, arguments in (('model', plugins.OF_MODEL), ('dataset', ())):
    text = shared[f'{kind}_options']
    shared[f'{kind}_options'] = plugins.resolved(kind, shared[kind], text, *arguments)
  shared = without_defaults(shared)
  return {**shared, 'algorithm': algorithm, **methods.options(algorithm), **options}
