"""Fetches what an accelerator's machine without a network lacks: wheels, into .whl.

  python -m benchmarks.accelerator.wheels

There, with this folder in the checkout:
  pip install --no-index --no-deps --target=SITE .whl/*.whl
  PYTHONPATH=SITE python -m benchmarks.accelerator
"""

import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parents[2] / '.whl'

# Beside JAX, Flax, Optax, Orbax, NumPy, scikit-learn, msgpack, rich and threadpoolctl,
# which are there, all that is imported by what is measured, FedJAX included.
PACKAGES = ('ijson==3.6.0', 'fedjax==0.0.17', 'dm-haiku==0.0.17', 'jmp==0.0.4')

_PLATFORMS = ('manylinux_2_28_x86_64', 'manylinux_2_17_x86_64', 'manylinux2014_x86_64')


def main(version: str = '3.12') -> None:
  """Downloads the wheels for a version of CPython on Linux, x86-64."""
  command = [
    sys.executable, '-m', 'pip', 'download', '--no-deps', '--only-binary=:all:',
    '--implementation=cp', f'--python-version={version}', f'--dest={FOLDER}',
    *(f'--platform={name}' for name in _PLATFORMS), *PACKAGES,
  ]  # fmt: skip
  subprocess.run(command, check=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
