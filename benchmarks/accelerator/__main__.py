r"""Measures this simulator on an accelerator, whole, by one command.

  python -m benchmarks.accelerator --minutes=8

Parts, in this order, each in a process of its own that is ended when its share of the
minutes is over:
  a  the device: versions, memory, peaks of products and of bandwidth, a loop's steps;
  b  right: a round of every method beside that of the CPU, from the same state;
  c  speed: SGD steps of one client a second on W1 to W8, by clients side by side, form
     of the convolutions, precision and shared start, beside the defaults;
  d  peers: PyTorch and FedJAX on the same chip, PyTorch also with stacked models;
  e  rounds: FedAvg, FeSEM, IFCA and Ditto with up to 10,000 clients; the first round
     of the binary, cold and warm;
  f  limits: clients until memory ends.
Each row is printed, and written to OUTPUT/accelerator_DEVICE.json, as soon as it is
measured. A part that is there already is left out, unless --again. What a part writes
to standard error is in OUTPUT/accelerator.log.

On a machine without a network, `python -m benchmarks.accelerator.wheels` first fetches
what it lacks into .whl, to be installed there with `pip install --no-index --no-deps`.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.accelerator import running

_MINUTES = flags.DEFINE_float('minutes', 8, 'Minutes in all.')
_PARTS = flags.DEFINE_list(
  'parts', list(running.PARTS), f'Of {", ".join(running.PARTS)}.'
)
_OUTPUT = flags.DEFINE_string(
  'output', str(pathlib.Path(__file__).parents[1] / 'results'), 'Folder of the file.'
)
_SMALL = flags.DEFINE_bool('small', False, 'Sizes for a test on a CPU.')
_ONLY = flags.DEFINE_string(
  'only', '', 'Regular expression of cases, such as "clients=1000"; the file keeps them'
  ' as a part of their own.'
)  # fmt: skip
_AGAIN = flags.DEFINE_bool('again', False, 'Measures parts that are there already too.')


def device_kind() -> str:
  """The name of the device, asked for in a process that ends."""
  if shutil.which('nvidia-smi') and os.environ.get('JAX_PLATFORMS') != 'cpu':
    command = ['nvidia-smi', '--query-gpu=name', '--format=csv,noheader']
  else:
    command = [sys.executable, '-c', 'import jax; print(jax.devices()[0].device_kind)']
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
  return (done.stdout.strip().splitlines() or ['unknown'])[-1]


def main(argv: list[str]) -> None:
  """Runs the parts that are not there yet."""
  del argv
  end = time.time() + 60 * _MINUTES.value
  folder = pathlib.Path(_OUTPUT.value)
  file = running.File(folder, device_kind())
  print(f'Into {file.path}', flush=True)
  again, only = _AGAIN.value, _ONLY.value
  wanted = [p for p in _PARTS.value if again or not file.done(file.name(p, only))]
  with tempfile.TemporaryDirectory(prefix='fesem-accelerator-') as cache:
    os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', cache)
    settings = running.Settings(folder, _SMALL.value, cache, only)
    for i, part in enumerate(wanted):
      shares = [running.PARTS[p][1] for p in wanted[i:]]
      seconds = (end - time.time()) * shares[0] / sum(shares)
      if seconds < running.GRACE + 1:
        print(f'{part} left out: no time is left.')
        continue
      running.run_part(part, seconds, file, settings)


if __name__ == '__main__':
  app.run(main)
