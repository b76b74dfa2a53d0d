"""Starting is quick: what a run may not need is imported where it is used."""

import subprocess
import sys

# Each takes between 20 ms and a second to import.
USED_LATER = {
  'PIL', 'datasets', 'h5py', 'matplotlib', 'orbax', 'pandas', 'pyarrow', 'scipy',
  'sklearn', 'tensorboardX', 'tensorflow_datasets', 'tensorstore',
}  # fmt: skip


def test_the_run_binary_imports_nothing_slow_that_it_may_not_need():
  command = [sys.executable, '-X', 'importtime', '-m', 'experiments.run', '--help']
  done = subprocess.run(command, check=True, capture_output=True, text=True)
  lines = [line for line in done.stderr.splitlines() if line.startswith('import time:')]
  imported = {line.rpartition('|')[2].strip() for line in lines}
  assert {'fesem_jax', 'fesem_jax.data.sources', 'fesem_jax.checkpoint'} <= imported
  assert not USED_LATER & {name.partition('.')[0] for name in imported}
