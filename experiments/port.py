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
from fesem_jax.utils.errors import check

from . import plugins
from .build import own_model
from .start import no_positional, start

# Logits of float32 sums in another order differ by this share of the largest one.
_TOLERANCE = 1e-4


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  for name in ('model', 'example_shape', 'num_classes', 'state_dict', 'output'):
    check(f[name].value, f'{name}: is missing; see --help')
  output = pathlib.Path(f.output)
  export.check(output)
  shape, hidden = _numbers('example_shape'), _numbers('hidden')
  if plugins.is_own(f.model):
    options = plugins.resolved('model', f.model, f.model_options)
    model = own_model(f.model, options, shape, f.num_classes, f.task)
  else:
    options = plugins.given('model_options', f.model_options, models.options(f.model))
    model = models.build(
      f.model, shape, f.num_classes, hidden, task=f.task, options=options
    )
  path = pathlib.Path(f.state_dict)
  state = export.read(path)
  params = porting.from_state_dict(model, state, path.suffix == '.npz')
  if f.check:
    arrays = export.read(pathlib.Path(f.check))
    x = porting.inputs(arrays['x'], shape)
    logits = np.asarray(jax.jit(model.apply)(params, x))
    print(_agreement(logits, arrays['logits']))
  export.write(output, params, by_layer(params), {'from': path.name})
  print(f'{output}: {f.model}; start from it with --init_from={output}')


def _agreement(ours: np.ndarray, theirs: np.ndarray) -> str:
  """A line on how near logits are; raises `UserError` if they are not the same."""
  difference = float(np.abs(ours - theirs).max())
  largest = float(np.abs(theirs).max())
  same = difference <= _TOLERANCE * max(largest, 1.0)
  check(same, f'check: logits differ by up to {difference:.2g}; the networks differ')
  return f'{len(ours)} examples: logits agree, largest difference {difference:.1e}'


def _numbers(name: str) -> tuple[int, ...]:
  """A flag of positive whole numbers."""
  values: list[str] = flags.FLAGS[name].value or []
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
