"""Methods, NAME(K;OPTION=VALUE), and options that several have."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fesem_jax import algorithms
from fesem_jax.algorithms import flat_options
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.data import expressions
from fesem_jax.data.expressions import parse, split_call
from fesem_jax.data.sources import user_function as load
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.server.optimizers import ServerOptimizer
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import check_choice

from .options import (
  CONFIGURATION,
  OPTIONS,
  Data,
  Option,
  Parser,
  documented,
  fields,
  parser,
)

SERVER_OPTIMIZERS: dict[str, Callable[..., Any]] = {
  'mean': lambda: None,
  'momentum': server_optimizers.momentum,
  'adagrad': server_optimizers.adagrad,
  'adam': server_optimizers.adam,
  'yogi': server_optimizers.yogi,
}

_SERVER_RATE = 'server_learning_rate'


def is_user_function(text: str) -> bool:
  """True if the name of an expression is MODULE:FUNCTION."""
  name, *_ = text.partition('(')
  return re.fullmatch(r'[^\W\d][\w.]*:[^\W\d]\w*', name) is not None


def _personal(name: str) -> dict[str, Any]:
  """The keyword-only arguments of a function that are numbers, text, True or False."""
  parameters = inspect.signature(load(name)).parameters.values()
  options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
  return {n: x for n, x in options.items() if type(x) in (bool, int, float, str)}


def options(name: str) -> dict[str, Any]:
  """The options of a method, with defaults; own ones may be named 'method.NAME'."""
  if is_user_function(name):
    personal = _personal(name)
    return {f'method.{n}' if n in OPTIONS else n: v for n, v in personal.items()}
  defaults = algorithms.options(name)
  if 'server_optimizer' in defaults:
    is_mean = defaults['server_optimizer'] is None
    defaults['server_optimizer'] = 'mean' if is_mean else 'adam'
    defaults[_SERVER_RATE] = None
  return {n: list(v) if isinstance(v, tuple) else v for n, v in defaults.items()}


def user_options(names: Iterable[str]) -> dict[str, Any]:
  by_method = [options(name) for name in names if is_user_function(name)]
  return {name: x for defaults in by_method for name, x in defaults.items()}


def all_options() -> dict[str, Any]:
  defaults: dict[str, Any] = {}
  for name in algorithms.METHODS:
    items = options(name).items()
    defaults |= {o: x for o, x in items if defaults.get(o) is None}
  return defaults


def shared_options() -> dict[str, tuple[Any, str]]:
  """Options of several methods, which are flags: default and words of the first."""
  factories = {f: name for name, f in reversed([*algorithms.METHODS.items()])}
  names = list(reversed(factories.values()))
  count = Counter(option for name in names for option in options(name))
  words = documented(flat_options.reclustered) | {
    option: f'{text} (of {name}; see --help=METHOD)'
    for name in reversed(names)
    for option, text in documented(algorithms.METHODS[name]).items()
  }
  return {o: (x, words[o]) for o, x in all_options().items() if count[o] > 1}


def parser_of(name: str, personal: Mapping[str, Any]) -> Option | Parser:
  """The parser of an option; `personal` are those of own methods, with defaults."""
  return OPTIONS.get(name) or parser(name, (all_options() | dict(personal))[name])


def folder_of(label: str) -> str:
  """The name of the folder of a method's runs: options may hold paths."""
  return label.replace('/', '_')


def checked_name(name: str) -> str:
  """The name of a method, of ours or the user's own; see `algorithms.named`."""
  if is_user_function(name):
    load(name)
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
  (optimizer,) = expressions.build(text, SERVER_OPTIMIZERS, 'server_optimizer')
  return optimizer


def applies(config: Mapping[str, Any], flag: str) -> bool:
  """True if a flag has an effect: the mean has no learning rate."""
  if flag != _SERVER_RATE or 'server_optimizer' not in config:
    return True
  return split_call(config['server_optimizer'])[0] in server_rates()


def sets(label: str, flag: str) -> bool:
  """True if the label of a method, NAME(K;FLAG=VALUE;...), sets a flag."""
  _, bracket, arguments = label.partition('(')
  names = split_call(f'method({arguments}')[1] if bracket else {}
  return any(str(name).partition('.')[0] == flag for name in names)


def configured(config: dict[str, Any], local: LocalTraining) -> Algorithm:
  name = config['algorithm']
  return build(name, local, {option: config[option] for option in options(name)})


def check_options(name: str, chosen: Iterable[str]) -> None:
  allowed = options(checked_name(name))
  for option in chosen:
    check(option in allowed, f'{option}: does not apply to {name}; leave it out')


def build(name: str, local: LocalTraining, chosen: Mapping[str, Any]) -> Algorithm:
  """Builds a method with some of `options(name)`; the others keep their defaults."""
  if is_user_function(name):
    values = {option.removeprefix('method.'): x for option, x in chosen.items()}
    built = load(name)(local, **values)
    check(isinstance(built, Algorithm), f'algorithm: {name} returns no Algorithm')
    return built
  values = {o: v for o, v in chosen.items() if o in algorithms.options(name)}
  if 'server_optimizer' in values:
    values['server_optimizer'] = server_optimizer(chosen)
  return algorithms.build(name, local, **values)


def split_label(text: str) -> tuple[str, str]:
  """'Ours=fesem(4;rounds=9)' -> ('Ours', 'fesem(4;rounds=9)'); '' is no label."""
  head, bracket, arguments = text.partition('(')
  label, _, name = head.rpartition('=')
  label = label.strip()
  fits = not label or re.fullmatch(r'[\w .+*-]*[\w+*-]', label)
  check(fits, f'algorithms: label {label!r} is no name of a folder')
  return label, name + bracket + arguments


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
  """'fesem(4;rounds=9)' -> ('fesem', {'num_clusters': 4, 'rounds': 9})."""
  name, arguments = split_call(text, 'algorithms')
  name = checked_name(name)
  defaults, chosen = options(name), dict[str, Any]()
  others = {o.name: o for t in CONFIGURATION if t is not Data for o in fields(t)}
  for key, value in arguments.items():
    fits = isinstance(key, str) or value.isdecimal()
    check(fits, f'algorithms: {text!r} is not NAME or NAME(K;OPTION=VALUE)')
    option = key if isinstance(key, str) else 'num_clusters'
    option = f'method.{option}' if f'method.{option}' in defaults else option
    if option not in all_options():
      check_choice(f'algorithms: {name}', option, (*defaults, *others))
    if option in others:
      chosen[option] = others[option].parse(value)
    else:
      check_options(name, [option])
      chosen[option] = parser(option, defaults[option]).parse(value)
  return name, chosen
