r"""Turns a PyTorch state_dict into a file that --init_from reads, and checks it.

  fesem-port --model=lenet5 --example_shape=28,28 --num_classes=10 \
      --state_dict=lenet.npz --check=logits.npz --output=lenet.msgpack

In PyTorch, write both files so (or the first one with safetensors.torch.save_file):

  state = {k: v.numpy() for k, v in net.state_dict().items()}
  np.savez('lenet.npz', **state)
  np.savez('logits.npz', x=x.numpy(), logits=net(x).detach().numpy())

--check is not needed, but only it tells whether the two networks are the same. --model
may be one of your own, MODULE:FUNCTION.
"""

import pathlib

import jax
import numpy as np
from absl import flags

from fesem_jax import models, tasks
from fesem_jax.models import porting
from fesem_jax.run.results import export
from fesem_jax.run.results.deployed_models import by_layer
from fesem_jax.utils.errors import UserError, argument

from . import plugins
from .build import own_model
from .start import no_positional, start

_PICKLES = ('.pt', '.pth', '.bin', '.ckpt')

# Logits of float32 sums in another order differ by this share of the largest one.
_TOLERANCE = 1e-4


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  for name in ('model', 'example_shape', 'num_classes', 'state_dict', 'output'):
    if not f[name].value:
      raise UserError(f'--{name} is missing; see --help.')
  output = pathlib.Path(f.output)
  export.check(output)
  shape, hidden = _numbers('example_shape'), _numbers('hidden')
  if plugins.is_own(f.model):
    options = plugins.resolved('model', f.model, f.model_options, *plugins.OF_MODEL)
    model = own_model(f.model, options, shape, f.num_classes, f.task)
  else:
    options = plugins.given('model_options', f.model_options, models.options(f.model))
    model = models.build(
      f.model, shape, f.num_classes, hidden, task=f.task, options=options
    )
  path = pathlib.Path(f.state_dict)
  if path.suffix in _PICKLES:
    raise UserError(
      f'{argument("state_dict", path)} is a pickle, which can run code when it is '
      f'read. In PyTorch, convert it: state = torch.load({path.name!r}, '
      f"weights_only=True); np.savez('{path.stem}.npz', **{{k: v.numpy() for k, v in "
      'state.items()})'
    )
  state = export.read(path)
  params = porting.from_state_dict(model, state, path.suffix == '.npz')
  if f.check:
    arrays = export.read(pathlib.Path(f.check))
    if not {'x', 'logits'} <= arrays.keys():
      raise UserError(
        f'{argument("check", f.check)} must hold the arrays x and logits.'
      )
    for name in ('x', 'logits'):
      if not arrays[name].size or not np.isfinite(arrays[name]).all():
        raise UserError(
          f'{argument("check", f.check)}: {name} has no values, or some that are not '
          'finite; give finite inputs and logits.'
        )
    x = porting.inputs(arrays['x'], shape)
    logits = np.asarray(jax.jit(model.apply)(params, x))
    print(_agreement(logits, arrays['logits']))
  export.write(output, params, by_layer(params), {'from': path.name})
  print(f'{output}: {f.model}; start from it with --init_from={output}')


def _agreement(ours: np.ndarray, theirs: np.ndarray) -> str:
  """A line on how near logits are; raises `UserError` if they are not the same."""
  if ours.shape != theirs.shape:
    raise UserError(f'The logits have shape {theirs.shape} there, {ours.shape} here.')
  difference = float(np.abs(ours - theirs).max())
  largest = float(np.abs(theirs).max())
  if not difference <= _TOLERANCE * max(largest, 1.0):
    raise UserError(
      f'The logits differ by up to {difference:.2g}, where the largest is '
      f'{largest:.2g}: the networks are not the same (activations, pooling, padding, '
      'or the order of equal layers); nothing was written.'
    )
  return f'{len(ours)} examples: logits agree, largest difference {difference:.1e}'


def _numbers(name: str) -> tuple[int, ...]:
  """A flag of positive whole numbers."""
  values: list[str] = flags.FLAGS[name].value or []
  if not all(v.isdecimal() and 0 < int(v) < 2**31 for v in values):
    raise UserError(f'{argument(name, ",".join(values))} must be positive numbers.')
  return tuple(int(v) for v in values)


def define_flags() -> None:
  """Defines the flags of this binary."""
  flags.DEFINE_string(
    'model', '', f'One of {", ".join(models.NAMES)}, or MODULE:FUNCTION.'
  )
  flags.DEFINE_list(
    'example_shape', [], 'Shape of one example here, as 28,28 or 32,32,3.'
  )
  flags.DEFINE_integer(
    'num_classes', 0, 'Classes, tokens, or targets of a regression.', lower_bound=0
  )
  flags.DEFINE_list('hidden', ['64'], "Widths of the mlp's hidden layers.")
  flags.DEFINE_string(
    'model_options', '', 'NAME=VALUE,...: see --model_options of fesem-run.'
  )
  flags.DEFINE_enum(
    'task',
    tasks.CLASSIFICATION.name,
    list(tasks.TASKS),
    'What the model is for; with sequence, models of tokens have logits at every '
    'position, [B, S, L], which --check then compares.',
  )
  flags.DEFINE_string('state_dict', '', 'File .npz or .safetensors of the state_dict.')
  flags.DEFINE_string('check', '', 'File .npz with inputs x and the logits in PyTorch.')
  flags.DEFINE_string('output', '', 'File to write: NAME.safetensors or NAME.msgpack.')


if __name__ == '__main__':
  define_flags()
  start(main)
