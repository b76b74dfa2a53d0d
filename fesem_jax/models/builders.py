"""Models by their names."""

import dataclasses
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn

from fesem_jax.core.made_by import recorded
from fesem_jax.core.types import Model
from fesem_jax.data.expressions import parse
from fesem_jax.models import resnet
from fesem_jax.models.networks import CelebaCnn, Cnn, EmnistCnn, Lenet, Mlp, as_model
from fesem_jax.models.recurrent import Recurrent
from fesem_jax.models.transformer import Transformer
from fesem_jax.tasks import CLASSIFICATION, SEQUENCE, TASKS
from fesem_jax.tasks.targets import has_channels_first
from fesem_jax.utils.errors import check
from fesem_jax.utils.ranges import Count, check_choice


class _Request(NamedTuple):
  """Arguments of `build` that modules depend on."""

  num_classes: int
  hidden: tuple[int, ...]
  every_position: bool


class _Entry(NamedTuple):
  """How a model is built, and what examples it takes."""

  module: Callable[[_Request], nn.Module]
  takes: str = 'any'  # 'any' shape, 'images' or 'tokens'
  least: int = 1  # pixels that each side of an image must have


def _cnn(width: int, features: tuple[int, int] = (32, 64), window: int = 5) -> _Entry:
  return _Entry(lambda a: Cnn(features, window, width, a.num_classes), 'images', 4)


def _recurrent(kind: str) -> _Entry:
  def module(a: _Request) -> nn.Module:
    return Recurrent(kind, a.num_classes, every_position=a.every_position)

  return _Entry(module, 'tokens')


def _resnet(depth: int, groups: int | None) -> _Entry:
  return _Entry(lambda a: resnet.resnet(depth, a.num_classes, groups), 'images')


_TABLE = {
  'logistic': _Entry(lambda a: Mlp((), a.num_classes)),
  'mlp': _Entry(lambda a: Mlp(a.hidden, a.num_classes)),
  'two_nn': _Entry(lambda a: Mlp((200, 200), a.num_classes)),
  'small_cnn': _cnn(64, (16, 32), 3),
  'mcmahan_cnn': _cnn(512),
  'femnist_cnn': _cnn(2048),
  'emnist_cnn': _Entry(lambda a: EmnistCnn(a.num_classes), 'images', 6),
  'celeba_cnn': _Entry(lambda a: CelebaCnn(a.num_classes), 'images'),
  'lenet5': _Entry(lambda a: Lenet(a.num_classes), 'images', 12),
  'niid_bench_cnn': _Entry(lambda a: Lenet(a.num_classes, False), 'images', 16),
  **{f'resnet{depth}': _resnet(depth, 2) for depth in resnet.SIZES},
  **{f'resnet{depth}_bn': _resnet(depth, None) for depth in resnet.SIZES},
  'lstm': _recurrent('lstm'),
  'gru': _recurrent('gru'),
  'transformer': _Entry(
    lambda a: Transformer(a.num_classes, every_position=a.every_position), 'tokens'
  ),
}

# A model is traced before its size is known.
_MAX_DEPTH, _MAX_WIDTH = 100, 2**20

NAMES = tuple(_TABLE)
# Those that read tokens: whole numbers in 0..L-1, of which an example is a sequence.
OF_TOKENS = tuple(name for name, entry in _TABLE.items() if entry.takes == 'tokens')


def options(model: str) -> dict[str, int]:
  """Options of a model by its name, and their defaults: widths, depths, groups."""
  check_choice('model', model, NAMES)
  module = _TABLE[model].module(_Request(1, (), False))
  return {
    field.name: getattr(module, field.name)
    for field in dataclasses.fields(module)
    if type(getattr(module, field.name)) is int and field.name != 'num_classes'
  }


def _with_options(
  model: str, module: nn.Module, values: Mapping[str, int]
) -> nn.Module:
  allowed = options(model)
  for option, value in values.items():
    most = _MAX_DEPTH if option == 'depth' else _MAX_WIDTH
    names = ', '.join(allowed) or 'none; hidden=[64] sets the widths of mlp'
    check(option in allowed, f'{model}: no option {option}; has {names}')
    fits = isinstance(value, numbers.Integral) and 1 <= value <= most
    check(fits, f'{model}: {option} must be from 1 to {most}; got {value!r:.20}')
  changes: dict[str, Any] = {option: int(value) for option, value in values.items()}
  return module.clone(**changes)


@recorded
def build(
  model: str,
  example_shape: Sequence[int],
  num_classes: Count,
  hidden: Sequence[int] = (200,),
  task: str = CLASSIFICATION.name,
) -> Model:
  """A model by its name.

  Args:
    model: one of `NAMES`, with `options` in brackets such as 'resnet8(groups=8)'. For
      any examples 'logistic'; 'mlp' with `hidden` widths; 'two_nn' (McMahan et al.,
      2017: 784-200-200-10). For images 'small_cnn' (3x3x16, 3x3x32, dense 64);
      'mcmahan_cnn' (5x5x32, pool, 5x5x64, pool, dense 512); 'femnist_cnn' (LEAF: the
      same with dense 2048); 'emnist_cnn' (TFF and FedJAX: 3x3x32, 3x3x64, pool, dense
      128); 'celeba_cnn' (LEAF: four blocks of 3x3x32); 'lenet5' and 'niid_bench_cnn';
      'resnet8', 'resnet20' and 'resnet18' with GroupNorm, with '_bn' BatchNorm. For
      sequences of tokens 'lstm' (LEAF), 'gru' and 'transformer'.
    example_shape: shape of one example: [H, W] or [H, W, C] of images, [S] of tokens.
    num_classes: L, also the number of tokens.
    hidden: widths of the MLP.
    task: a key of `tasks.TASKS`. For 'sequence', models of tokens give logits
      [B, S, L] of the token behind each position, else [B, L] behind the last one.

  Raises:
    UserError: on an unknown name or option, or a model that does not fit the examples.
  """
  call, *more = parse(model, 'model')
  model, options = call.name, call.options
  check(not (more or call.args), f'model: {model} takes NAME=VALUE in brackets')
  check_choice('model', model, NAMES)
  entry, shape = _TABLE[model], tuple(example_shape)
  if entry.takes == 'images':
    check(len(shape) in (2, 3), f'{model}: takes images; examples have shape {shape}')
    last = not has_channels_first(shape)
    check(last, f'{model}: channels must be the last axis; examples have {shape}')
    large = min(shape[:2]) >= entry.least
    check(large, f'{model}: needs {entry.least} pixels a side; examples have {shape}')
  tokens = entry.takes == 'tokens'
  fits = len(shape) == 1 or not tokens
  check(fits, f'{model}: takes sequences of tokens; examples have shape {shape}')
  check_choice('task', task, tuple(TASKS))
  every_position = task == SEQUENCE.name
  check(tokens or not every_position, f'{model}: has no logits at every position')
  request = _Request(num_classes, tuple(hidden), every_position)
  module = _with_options(model, entry.module(request), options)
  built = as_model(module, shape)
  return built._replace(loss=TASKS[task].loss, task=TASKS[task])
