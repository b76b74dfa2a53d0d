"""The flags of all experiment binaries, and the configuration they give.

A configuration is a plain dict of flag name -> value that determines a run; it
is what `config.json` holds and what `run.run` takes.
"""

from typing import Any

from absl import flags

from fesem_jax import partitions

from . import methods, options


def define(*names: str) -> None:
  """Defines the flags of topics or options; by default all but those of processes."""
  for name in names or [t for t in (*options.TOPICS, 'methods') if t != 'processes']:
    if name == 'methods':
      for option, (default, words) in methods.shared_options().items():
        _define_one(options.parser(option, default), None, words)
      continue
    if name in options.TOPICS:
      define_options(options.TOPICS[name])
    else:
      _define_option(options.OPTIONS[name])


def define_options(cls: Any) -> None:
  """Defines a flag for each field of a class of options."""
  for option in options.fields(cls):
    _define_option(option)


def _define_option(option: options.Option) -> None:
  default = option.default
  default = list(default) if isinstance(default, tuple) else default
  _define_one(options.Parser(option.name, option.hint), default, option.help)


def _define_one(parser: options.Parser, default: Any, words: str) -> None:
  """Defines a flag; one that is true or false has a form --noNAME."""
  if parser.hint in (bool, bool | None):
    flags.DEFINE_bool(parser.name, default, words)
  else:
    flags.DEFINE(parser, parser.name, default, words)


def data_names() -> list[str]:
  """Names of a configuration that decide the data."""
  return [option.name for option in options.fields(options.Data)]


def common_names() -> list[str]:
  """Names of a configuration that do not depend on the method."""
  return [o.name for topic in options.CONFIGURATION for o in options.fields(topic)]


def common() -> dict[str, Any]:
  """The part of a configuration that does not depend on the method."""
  return {name: flags.FLAGS[name].value for name in common_names()}


def data_choice(config: dict[str, Any] | None = None) -> dict[str, Any]:
  """Arguments of `data.load_phases`, from a configuration or from the flags."""
  if config is None:
    return {name: flags.FLAGS[name].value for name in data_names()}
  return {name: config[name] for name in data_names()}


def machine() -> dict[str, Any]:
  """Flags that decide where and how fast a run happens, never its results."""
  topics = options.Output, options.Machine, options.Processes
  names = [o.name for topic in topics for o in options.fields(topic)]
  return {name: flags.FLAGS[name].value for name in names if name in flags.FLAGS}


def progress() -> bool:
  """The `progress` of `simulate`: False with --quiet."""
  return not machine().get('quiet')


def chosen_options() -> dict[str, Any]:
  """The method options that were given on the command line."""
  values = {name: flags.FLAGS[name].value for name in methods.shared_options()}
  return {name: value for name, value in values.items() if value is not None}


def configuration(algorithm: str, chosen: dict[str, Any]) -> dict[str, Any]:
  """A whole configuration, the method's defaults filled in.

  Raises `UserError` on an option that the method does not have, or on an own method,
  model or data set that cannot be used.
  """
  methods.check_options(algorithm, chosen)
  shared = common()
  if shared['partition']:  # Equal partitions have one text.
    shared['partition'] = str(partitions.parse(shared['partition']))
  return {**shared, 'algorithm': algorithm, **methods.options(algorithm), **chosen}
