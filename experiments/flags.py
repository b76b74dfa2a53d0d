"""The flags of all binaries, and the configuration of a run that they give."""

from typing import Any, get_args

from absl import flags

from fesem_jax import partitions

from . import methods, options


def define(*items: Any) -> None:
  """Defines the flags of topics, options or classes; by default all topics but one."""
  default = [topic for topic in (*options.TOPICS, 'methods') if topic != 'processes']
  for item in items or default:
    if item == 'methods':
      for name, (x, words) in methods.shared_options().items():
        _define(options.parser(name, x), None, words)
      continue
    topic: Any = options.TOPICS.get(item, item)
    single = isinstance(topic, str)
    for option in [options.OPTIONS[topic]] if single else options.fields(topic):
      _define(options.Parser(option.name, option.hint), option.default, option.help)


def _define(parser: options.Parser, default: Any, words: str) -> None:
  default = list(default) if isinstance(default, tuple) else default
  if parser.hint in (bool, bool | None):  # It also has a form --noNAME.
    flags.DEFINE_bool(parser.name, default, words)
  elif options.REPEATED in get_args(parser.hint):
    flags.DEFINE_multi_string(parser.name, default, words)
  else:
    flags.DEFINE(parser, parser.name, default, words)


def values(*topics: Any) -> dict[str, Any]:
  """The values of the flags of topics, as far as they are defined."""
  names = [option.name for topic in topics for option in options.fields(topic)]
  return {name: flags.FLAGS[name].value for name in names if name in flags.FLAGS}


def common() -> dict[str, Any]:
  """The part of a configuration that does not depend on the method."""
  return values(*options.CONFIGURATION)


def data_choice(config: dict[str, Any] | None = None) -> dict[str, Any]:
  """Arguments of `data.load_phases`, from a configuration or from the flags."""
  config = config or common()
  return {option.name: config[option.name] for option in options.fields(options.Data)}


def machine() -> dict[str, Any]:
  """Flags that decide where and how fast a run happens, never its results."""
  return values(options.Output, options.Machine, options.Processes)


def progress() -> bool:
  """The `progress` of `simulate`: False with --quiet."""
  return not machine().get('quiet')


def chosen_options() -> dict[str, Any]:
  values = {name: flags.FLAGS[name].value for name in methods.shared_options()}
  return {name: value for name, value in values.items() if value is not None}


def configuration(algorithm: str, chosen: dict[str, Any]) -> dict[str, Any]:
  """A configuration with the method's defaults; `UserError` on options it lacks."""
  methods.check_options(algorithm, chosen)
  shared = common()
  if shared['partition']:  # Equal partitions have one text.
    shared['partition'] = str(partitions.parse(shared['partition']))
  return {**shared, 'algorithm': algorithm, **methods.options(algorithm), **chosen}
