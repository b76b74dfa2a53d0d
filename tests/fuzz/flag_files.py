"""Flag files: lines of flags, changed by a small grammar."""

import contextlib
import io

from absl import flags

from experiments import run, start
from fesem_jax.utils.errors import UserError
from tests.fuzz import mutations
from tests.fuzz.forms import Format
from tests.support import commands

_LINES = [
  '# A comment', '--dataset=digits', '--partition=rotated', '--num_clients=20',
  '--rounds=2', '--algorithm=fesem', '--num_clusters=4', '--local_epochs=1',
  '--learning_rate=0.1', '--batch_size=10', '--hidden=8', '--noresume',
]  # fmt: skip
_WORDS = [
  '--flagfile=flags.txt', '--flagfile=/dev/null', '--flagfile=/', '--flagfile=a\0b',
  '--flagfile', '--flagfile=' + 'y' * 5000, '--flagfile=demo', '--help', '--undefok=x',
  '--', '-', '---', '--=', '=', '--rounds', '--rounds=', '--rounds=nan', '--rounds=1e9',
  '--rounds=99999999999999999999', '--learning_rate=inf', '--learning_rate=nan',
  '--learning_rate=1e400', '--hidden=a', '--hidden=-1', '--hidden=' + '9' * 5000,
  '--hidden=,,', '--num_clusters=0', '--num_clusters=-1', '--algorithm=x',
  '--algorithm=os:system', '--algorithm=a.b:c', '--algorithm=:', '--dataset=npz:',
  '--dataset=a\0b', '--data_dir=\0', '--workdir=\0', '--workdir=../../outside/evil',
  '--noflag', '--norounds', '--nohelp', '--verbosity=x', '--seed=-1', '--seed=2**64',
  '--optimizer=x', '--temperature=-1', '--prox_lambda=1e999', '--algorithm_options=a=b',
  '--algorithm_options==', '--local_steps=-3', '--partition=shards:', '--partition=:',
  '--flagfile=x/../flags.txt', '--rounds=٣', '--dataset=é', '\ud800', '\ufeff',
  '\x1b[2J',
]  # fmt: skip


def write(folder):
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'flags.txt').write_text('\n'.join(_LINES) + '\n')


def change(rng, folder):
  lines = list(_LINES)
  for _ in range(rng.integers(1, 4)):
    at = int(rng.integers(0, len(lines) + 1))
    if rng.random() < 0.6:
      lines.insert(at, _WORDS[rng.integers(len(_WORDS))])
    elif lines[at : at + 1]:
      name, _, value = lines[at].partition('=')
      others = [
        'nan', '-1', '1e999', 'x', '', '9' * 30, 'true', value * 300, '0.5', '[]',
      ]  # fmt: skip
      lines[at] = f'{name}={others[rng.integers(len(others))]}'
  raw = '\n'.join(lines).encode(errors='surrogatepass')
  if rng.random() < 0.25:
    raw = mutations.of_bytes(rng, raw)
  (folder / 'flags.txt').write_bytes(raw)


def read(folder):
  """As `fesem-run --flagfile=FILE` reads it, up to its configuration."""
  said = io.StringIO()
  with (
    commands._flags_of_a_new_process(),
    contextlib.chdir(folder),
    contextlib.redirect_stderr(said),
    contextlib.redirect_stdout(io.StringIO()),
  ):
    run.define_flags()
    main = start.main_with_clear_errors(_configure)
    try:
      main(start.parse_flags(['fesem-run', '--flagfile=flags.txt']))
    except SystemExit as e:
      if not e.code:  # --help
        return
      *_, sentence = said.getvalue().strip().splitlines() or ['']
      assert 'error: ' in said.getvalue(), said.getvalue()[-300:]
      raise UserError(sentence) from e


def _configure(argv):
  start.no_positional(argv)
  config = run.chosen_configuration()
  assert flags.FLAGS.is_parsed()
  run.default_workdir(config)


FORMATS = {'flag files': Format(write, change, read)}
