"""Methods as the binaries name them: their options, and NAME(K;FLAG=VALUE)."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from absl import flags

from fesem_jax import algorithms
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.optimizers import ServerOptimizer
from fesem_jax.utils import expressions
from fesem_jax.utils.display import text_of
from fesem_jax.utils.errors import UserError, check
from fesem_jax.utils.expressions import parse, split, split_call

from . import plugins

SERVER_OPTIMIZERS: dict[str, Callable[..., Any]] = {
  'mean': lambda: None,
  'momentum': server_optimizers.momentum,
  'adagrad': server_optimizers.adagrad,
  'adam': server_optimizers.adam,
  'yogi': server_optimizers.yogi,
}

_SERVER_RATE = 'server_learning_rate'


def options(name: str) -> dict[str, Any]:
  """The flags that are options of a method, with the method's defaults.

  The argument `server_optimizer` is an Optax optimizer; as flags, it is a name and
  numbers, of which None is the optimizer's own default.
  """
  if plugins.is_own(name):
    return plugins.options(_own(name))
  own = algorithms.options(name)
  if 'server_optimizer' in own:
    own['server_optimizer'] = 'mean' if own['server_optimizer'] is None else 'adam'
    own[_SERVER_RATE] = None
  return {n: list(v) if isinstance(v, tuple) else v for n, v in own.items()}


def _own(name: str) -> Callable[..., Any]:
  """The factory of a method of the user's own."""
  return plugins.load(name)


def options_of_own(names: Iterable[str]) -> dict[str, Any]:
  """Options, with their defaults, of those methods that are the user's own."""
  own = [options(name) for name in names if plugins.is_own(name)]
  return {option: default for each in own for option, default in each.items()}


def folder_of(label: str) -> str:
  """The name of the folder of a method's runs: options may hold paths."""
  return label.replace('/', '_')


def checked_name(name: str) -> str:
  """The name of a method, of ours or the user's own; see `algorithms.named`.

  Raises `UserError` where there is none.
  """
  if plugins.is_own(name):
    _own(name)
    return name
  return algorithms.named(name)


def server_rates() -> dict[str, float]:
  """Server optimizers that have a learning rate, with its default."""
  rates = {}
  for name, make in SERVER_OPTIMIZERS.items():
    parameter = inspect.signature(make).parameters.get('learning_rate')
    if parameter is not None:
      rates[name] = parameter.default
  return rates


def server_optimizer(chosen: Mapping[str, Any]) -> ServerOptimizer:
  """The server optimizer of 'adam(tau=0.01)', at --server_learning_rate if given."""
  text, rate = chosen['server_optimizer'], chosen.get(_SERVER_RATE)
  if rate is not None:
    name, *_ = call = parse(text, 'server_optimizer')[0]
    check(name in server_rates(), f'{_SERVER_RATE}: does not apply to {name}')
    text = str(call._replace(options={**call.options, 'learning_rate': rate}))
  (made,) = expressions.build(text, SERVER_OPTIMIZERS, 'server_optimizer')
  return made


def applies(config: Mapping[str, Any], flag: str) -> bool:
  """True if a flag has an effect in a configuration that has it.

  The mean has no learning rate.
  """
  if flag != _SERVER_RATE or 'server_optimizer' not in config:
    return True
  return split_call(config['server_optimizer'])[0] in server_rates()


def sets(label: str, flag: str) -> bool:
  """True if the label of a method, NAME(K;FLAG=VALUE;...), sets a flag."""
  _, bracket, inside = label.partition('(')
  names = split_call(f'method({inside}')[1] if bracket else {}
  return any(str(name).partition('.')[0] == flag for name in names)


def configured(config: dict[str, Any], local: LocalTraining) -> Algorithm:
  """The method that a configuration names, with its options."""
  name = config['algorithm']
  return build(name, local, {option: config[option] for option in options(name)})


def all_options() -> list[str]:
  """Names of all options that some method has."""
  return list(dict.fromkeys(o for name in algorithms.METHODS for o in options(name)))


def check_options(name: str, chosen: Mapping[str, Any]) -> None:
  """Raises `UserError` on an unknown method or an option it does not have."""
  allowed = options(checked_name(name))
  for option in chosen:
    check(option in allowed, f'{option}: does not apply to {name}; leave it out')


def typed(name: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
  """Values of flags, with the types that a method of the user's own gives its options.

  Flags of this package with the name of such an option may have another type.
  """
  if not plugins.is_own(name):
    return dict(chosen)
  values, defaults = dict(chosen), options(name)
  for option in values.keys() & defaults.keys():
    given = values[option]
    text = given if isinstance(given, str) else text_of(given)
    values[option] = plugins.value(text, defaults[option])
  return values


def build(name: str, local: LocalTraining, chosen: Mapping[str, Any]) -> Algorithm:
  """Builds a method with some of `options(name)`; the others keep their defaults."""
  if plugins.is_own(name):
    built = _own(name)(local, **chosen)
    check(isinstance(built, Algorithm), f'algorithm: {name} returns no Algorithm')
    return built
  own = {o: v for o, v in chosen.items() if o in algorithms.options(name)}
  if 'server_optimizer' in own:
    own['server_optimizer'] = server_optimizer(chosen)
  return algorithms.build(name, local, **own)


def _settable() -> set[str]:
  """Flags that NAME(K;FLAG=VALUE) may set beside the method's options."""
  from .flag_tables import GROUPS  # It looks up the options of all methods here.

  of_training = [*GROUPS['training'], *GROUPS['privacy']]
  return {
    'finetune_epochs',
    'rounds',
    'select',
    'clients_per_round',
    *(flag.name for flag in of_training),
  }


def split_label(text: str) -> tuple[str, str]:
  """'Ours=fesem(4;rounds=9)' -> ('Ours', 'fesem(4;rounds=9)'); '' is no label."""
  before, bracket, inside = text.partition('(')
  label, _, name = before.rpartition('=')
  label = label.strip()
  fits = not label or re.fullmatch(r'[\w .+*-]*[\w+*-]', label)
  check(fits, f'algorithms: label {label!r} is no name of a folder')
  return label, name + bracket + inside


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
  """'fesem(4;rounds=9)' -> ('fesem', {'num_clusters': 4, 'rounds': 9})."""
  name, arguments = split_call(text, 'algorithms')
  name = checked_name(name)
  chosen: dict[str, Any] = {}
  for key, value in arguments.items():
    fits = isinstance(key, str) or value.isdecimal()
    check(fits, f'algorithms: {text!r} is not NAME or NAME(K;FLAG=VALUE)')
    flag = key if isinstance(key, str) else 'num_clusters'
    if flag not in _settable() and flag not in options(name):
      check_options(name, {flag: value})
    try:
      chosen[flag] = _parser(name, flag)(value)
    except ValueError as e:
      raise UserError(f'{flag}: {e}') from e
  return name, chosen


def _parser(name: str, flag: str) -> Callable[[str], Any]:
  """The function that parses the text of a flag's value for a method."""
  if plugins.is_own(name) and flag not in _settable():
    return functools.partial(plugins.value, default=options(name)[flag])
  return int if flag == 'num_clusters' else flags.FLAGS[flag].parser.parse


class ListParser(flags.ListParser):
  """Parses a list of methods, whose brackets may hold commas."""

  def parse(self, argument: str | list[str]) -> list[str]:
    """Returns the texts of the methods."""
    texts = (
      split(argument, subject='algorithms') if isinstance(argument, str) else argument
    )
    return [text for text in texts if text]


def label_of(name: str, chosen: Mapping[str, Any]) -> str:
  """How tables and folders call a method, e.g. 'fesem(4)'."""
  inside = [str(chosen['num_clusters'])] if 'num_clusters' in chosen else []
  inside += [f'{o}={v}' for o, v in chosen.items() if o != 'num_clusters']
  return f'{name}({";".join(inside)})' if inside else name
