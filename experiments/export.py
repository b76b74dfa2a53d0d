"""Writes one model of a finished run to a file that other programs read.

  fesem-export --run=WORKDIR --cluster=2 --output=center2.safetensors

--output ends in .safetensors (pip install 'fesem_jax[export]') or .msgpack (Flax).
Without --cluster and --client it is the global model.
"""

import pathlib

from absl import flags

from fesem_jax.run.results import export
from fesem_jax.run.results.saved_run import load_run
from fesem_jax.utils.errors import check

from .start import no_positional, start


def main(argv: list[str]) -> None:
  no_positional(argv)
  f = flags.FLAGS
  for name in ('run', 'output'):
    check(f[name].value, f'{name}: is missing; see --help')
  path = pathlib.Path(f.output)
  export.check(path)
  load_run(f.run).export(path, client=f.client, cluster=f.cluster)
  print(path)


if __name__ == '__main__':
  flags.DEFINE_string('run', '', 'Workdir of the finished run.')
  flags.DEFINE_string('output', '', 'File to write: NAME.safetensors or NAME.msgpack.')
  flags.DEFINE_integer('cluster', None, 'Number of the center, from 0.')
  flags.DEFINE_string('client', None, 'Name of the client whose deployed model it is.')
  start(main)
