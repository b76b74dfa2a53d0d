"""The flags of all experiment binaries, and the configuration they give.

A configuration is a plain dict of flag name -> value that determines a run; it
is what `config.json` holds and what `run.run` takes.
"""

from typing import Any

from absl import flags

from fesem_jax import partitions
from fesem_jax.utils.errors import check

from . import methods, schedules
from .flag_tables import GROUPS

# Topics of flags that determine the results of a run, and its configuration. The others
# say where and how fast it happens and what is said of it. Data split by client change
# results, and then the library says so in the configuration.
_DETERMINE = ('data', 'partition', 'model', 'training', 'privacy', 'run', 'evaluation')
_OTHERS = (
  'data_dir',
  *(flag.name for t in ('output', 'machine', 'processes') for flag in GROUPS[t]),
)


def define(*groups: str) -> None:
  """Defines the flags of some of `GROUPS`, by default of all but of processes."""
  chosen = groups or [name for name in GROUPS if name != 'processes']
  for group in chosen:
    for flag in GROUPS[group]:
      define_one = getattr(flags, f'DEFINE_{flag.kind}', flags.DEFINE)
      define_one(name=flag.name, default=flag.default, help=flag.help, **flag.extra)


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


def with_whole_schedule(config: dict[str, Any]) -> dict[str, Any]:
  """A configuration whose schedule says over how many rounds it goes."""
  of_rounds = schedules.resolved(config['lr_schedule'], config['rounds'])
  return config | {'lr_schedule': of_rounds}


def data_choice(config: dict[str, Any] | None = None) -> dict[str, Any]:
  """Arguments of `data.load_phases`, from a configuration or from the flags."""
  names = data_names()
  if config is None:
    config = {name: flags.FLAGS[name].value for name in names}
  values: dict[str, Any] = {name: config[name] for name in names}
  rounds = values['drift_rounds']
  whole = all(str(number).isdecimal() for number in rounds)
  check(whole, f'drift_rounds: must be whole numbers; got {",".join(map(str, rounds))}')
  return values | {'drift_rounds': [int(number) for number in rounds]}


def machine() -> dict[str, Any]:
  """Flags that decide where and how fast a run happens, never its results."""
  names = [name for name in _OTHERS if name in flags.FLAGS]
  return {name: flags.FLAGS[name].value for name in names}


def progress() -> bool:
  """The `progress` of `simulate`: False with --quiet."""
  return not machine().get('quiet')


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
  if shared['partition']:  # Equal partitions have one text.
    shared['partition'] = str(partitions.parse(shared['partition']))
  return {**shared, 'algorithm': algorithm, **methods.options(algorithm), **options}
