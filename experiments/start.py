"""How every experiment binary starts, and how it ends after a mistake."""

import gc
import io
import logging as std_logging
import os
import pathlib
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from absl import app, flags, logging

from fesem_jax.utils import processes
from fesem_jax.utils.display import printable
from fesem_jax.utils.errors import Diverged, UserError, check
from fesem_jax.utils.interrupts import SIGNALS, Stopped
from fesem_jax.utils.ranges import check_choice
from fesem_jax.utils.safe_files import first_line, reading
from fesem_jax.utils.version import __version__

from . import methods, usage

# The exit code of a process that leaves the reason to another one: EX_TEMPFAIL.
LOST_OTHERS = 75
# That of a process that SIGPIPE ends, as shells give it.
CLOSED_PIPE = 141
INTERRUPTED = 130  # That after a signal of `interrupts.SIGNALS`.
_PARTING_SECONDS = 3
# In error messages of JAX after the loss of another process.
_LOSS = re.compile(r'Gloo|NCCL|coordination service', re.IGNORECASE)
_PRESETS = pathlib.Path(__file__).parent / 'presets'
# What absl says before the message of a parser, which names the flag.
_ABSL = r'(?s)^flag --(\w+)=.*?: (?=\1: )'


def _fail(sentence: str, code: int = 1) -> NoReturn:
  """Ends the process with a sentence, whatever characters it quotes."""
  print(f'error: {printable(sentence, 2000)}', file=sys.stderr)
  sys.exit(code)


def _as_flag(message: str) -> str:
  """A message whose subject is an argument, with the flag of its name as subject."""
  return f'--{message}' if message.partition(':')[0] in flags.FLAGS else message


def main_with_clear_errors(
  main: Callable[[list[str]], None],
) -> Callable[..., None]:
  """Turns a user's mistake into one sentence and exit code 1, without waiting."""

  def wrapped(argv: list[str]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):  # Names may hold any characters.
      sys.stdout.reconfigure(errors='backslashreplace')
    if not flags.FLAGS['verbosity'].present:
      logging.set_verbosity(logging.WARNING)  # JAX tells of TPUs it looked for.
      formatter = std_logging.Formatter('%(levelname)s: %(message)s')
      logging.get_absl_handler().setFormatter(formatter)
    # Tracing makes objects by the million, hardly any of them garbage in cycles.
    gc.set_threshold(100_000, 20, 100)
    raise_interrupts()
    try:
      main(argv)
    except processes.FirstProcessFailed:
      sys.exit(LOST_OTHERS)
    except UserError as e:
      if isinstance(e, Diverged) and not processes.is_first():  # As all did.
        sys.exit(LOST_OTHERS)
      _fail(_as_flag(str(e)))
    except MemoryError as e:
      _fail(f'memory: {e}; choose fewer clients or examples')
    except (jax.errors.JaxRuntimeError, ValueError) as e:
      if processes.count() > 1 and _LOSS.search(str(e)):
        _fail(
          f'Another process of this run has ended ({first_line(e)}). Checkpoints are '
          'kept; run the same command again to continue.',
          LOST_OTHERS,
        )
      if 'RESOURCE_EXHAUSTED' not in str(e):
        raise
      remedy = 'lower --clients_per_chunk, or set --client_state=offloaded'
      _fail(f'device memory: {first_line(e)}; {remedy}')
    except Stopped as e:
      _interrupted(str(e))
    except KeyboardInterrupt:
      _interrupted(
        'Interrupted; finished runs and earlier checkpoints are kept. Repeat the '
        'command to continue.'
      )

  def with_others(argv: list[str]) -> None:
    try:
      wrapped(argv)
    except BaseException as e:
      if processes.count() == 1:
        raise
      if isinstance(e, BrokenPipeError) and _left_closed_pipe():
        _leave(CLOSED_PIPE)
      if not isinstance(e, SystemExit):
        traceback.print_exc()
      _leave(e.code if isinstance(e, SystemExit) else 1)

  return with_others


def _leave(code: Any) -> NoReturn:
  """Ends this process without waiting for the others, as JAX would for minutes."""
  for stream in (sys.stdout, sys.stderr):
    stream.flush()
  # Otherwise processes that end together report each other as dead.
  parting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
  parting.start()
  parting.join(_PARTING_SECONDS)
  os._exit(code if isinstance(code, int) else int(code is not None))


def _interrupted(sentence: str) -> NoReturn:
  """Ends the process after Ctrl-C or another of `interrupts.SIGNALS`."""
  if processes.is_first():
    print(sentence, file=sys.stderr)
  sys.exit(INTERRUPTED)


def raise_interrupts() -> None:
  """Makes `SIGNALS` raise KeyboardInterrupt, but for those ignored or handled."""
  for number in SIGNALS:
    if signal.getsignal(number) == signal.SIG_DFL:
      signal.signal(number, signal.default_int_handler)


def parse_flags(argv: list[str]) -> list[str]:
  if (topic := usage.requested_topic(argv)) is not None:
    try:
      print(usage.text(topic))
    except UserError as e:
      _fail(str(e))
    sys.exit(0)
  if {'--version', '-version'} & set(argv[1:]):
    print(f'fesem_jax {__version__}')
    sys.exit(0)
  try:
    return flags.FLAGS(argv[:1] + expanded(argv[1:]))
  except flags.UnrecognizedFlagError as e:
    name = e.flagname
    if name in methods.all_options():
      _fail(f"--{name}: is no flag; write --algorithm='METHOD({name}=VALUE)'")
    _fail(f'{str(e).rstrip(" .?")}; see --help.')
  except (flags.Error, ValueError) as e:  # absl lets some of Python's through.
    _fail(f'{_as_flag(re.sub(_ABSL, "", str(e))).rstrip(" .?")}; see --help.')


def preset_names() -> list[str]:
  """Names of all presets, such as 'demo' and 'table2/fesem_4', in order."""
  files = _PRESETS.rglob('*.flags')
  return sorted(f.relative_to(_PRESETS).with_suffix('').as_posix() for f in files)


def expanded(arguments: list[str], within: tuple[str, ...] = ()) -> list[str]:
  """Flags, those of presets and files in the place of --flagfile."""
  flat, remaining = list[str](), arguments
  while remaining and remaining[0] != '--':
    (name, equals, value), *remaining = remaining[0].partition('='), *remaining[1:]
    if name not in ('--flagfile', '-flagfile'):
      flat.append(name + equals + value)
      continue
    if not equals:  # `--flagfile demo`.
      value, remaining = ''.join(remaining[:1]), remaining[1:]
    path, preset = pathlib.Path(value), value.removesuffix('.flags')
    preset = preset.removeprefix('experiments/presets/')
    if not path.is_file() and preset in preset_names():
      path = _PRESETS / f'{preset}.flags'
    if not path.is_file():
      check_choice('--flagfile', preset, tuple(preset_names()))
    check(str(path) not in within, f'--flagfile: {value} names itself')
    with reading(path):
      lines = [line.strip() for line in path.read_text().splitlines()]
    lines = [line for line in lines if line and not line.startswith(('#', '//'))]
    flat += expanded(lines, (*within, str(path)))
  return flat + remaining


def start(main: Callable[[list[str]], None]) -> None:
  """Runs a binary whose flags are defined; it ends silently when its pipe is closed."""
  try:
    try:
      app.run(main_with_clear_errors(main), flags_parser=parse_flags)
    except SystemExit:  # As every binary ends.
      sys.stdout.flush()
      raise
  except BrokenPipeError:
    if not _left_closed_pipe():
      raise
    sys.exit(CLOSED_PIPE)
  finally:
    gc.freeze()  # Or Python looks for garbage among millions of objects as it ends.


def _left_closed_pipe() -> bool:
  """True if the standard output is closed; it then goes to the null device."""
  poll = select.poll()
  poll.register(sys.stdout, 0)  # Errors are always reported.
  if not poll.poll(0):
    return False
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return True


def no_positional(argv: list[str]) -> None:
  if len(argv) > 1:
    raise UserError(f'{argv[1]!r:.30}: is not a flag; write --NAME=VALUE')
