"""Spoils files at random and reads them: `make fuzz`.

  python -m tests.fuzz --mutations=500 --seed=0 [--only=FORMAT,...] [--json=FILE]

A reader may refuse a file in a sentence (`UserError`) or give plausible data. A fault
is any other exception, a crash, more than 5 processor seconds, more than 512 MiB of
memory beyond what the process had, or a file written elsewhere, as by an object that is
unpickled. Every format is read in a process of its own.
"""

import argparse
import collections
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time

# Seconds after which a process that says nothing hangs.
WALL = 300


def child(options):
  """Tries mutations of one format, and says a line of JSON for each."""
  import jax

  jax.config.update('jax_num_cpu_devices', 2)  # As all tests see them.
  jax.config.update('jax_compilation_cache_dir', f'{options.box}/home/programs')
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  from tests.fuzz import trying

  out = os.fdopen(os.dup(1), 'w')
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  for made in trying.tried(
    options.child, range(options.first, options.mutations), options.seed,
    pathlib.Path(options.box), limited=True,
  ):  # fmt: skip
    out.write(json.dumps(made) + '\n')
    out.flush()


def _of_format(name, options, box):
  """Outcomes of all mutations of a format, over as many processes as it takes."""
  outcomes, began = [], time.time()
  while len(outcomes) < options.mutations:
    command = [
      sys.executable, '-m', 'tests.fuzz', f'--child={name}', f'--first={len(outcomes)}',
      f'--mutations={options.mutations}', f'--seed={options.seed}', f'--box={box}',
    ]  # fmt: skip
    home = {'HOME': f'{box}/home', 'XDG_CACHE_HOME': f'{box}/home/cache',
            'HF_HOME': f'{box}/home/hf', 'HF_HUB_OFFLINE': '1', 'JAX_PLATFORMS': 'cpu',
            'TF_CPP_MIN_LOG_LEVEL': '3'}  # fmt: skip
    with tempfile.TemporaryFile() as said:
      process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=said, env=os.environ | home
      )
      assert process.stdout is not None
      end = 'crash'
      while True:
        ready, _, _ = select.select([process.stdout], [], [], WALL)
        if not ready:
          end = 'hang'
          process.kill()
          break
        line = process.stdout.readline()
        if not line:
          break
        outcomes.append(json.loads(line))
      code = process.wait()
      said.seek(0, 2)
      said.seek(max(0, said.tell() - 2000))
      last = said.read().decode(errors='replace')
    if code and len(outcomes) < options.mutations:
      if not outcomes and 'Traceback' in last:
        raise SystemExit(last)
      outcomes.append({'outcome': end, 'what': f'exit {code}: {last[-300:]}'})
  return outcomes, time.time() - began


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--mutations', type=int, default=500)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--only', default='', help='Names of formats; default: all.')
  parser.add_argument('--json', default='')
  parser.add_argument('--child', default='', help=argparse.SUPPRESS)
  parser.add_argument('--first', type=int, default=0, help=argparse.SUPPRESS)
  parser.add_argument('--box', default='', help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.child:
    child(options)
    return
  from tests.fuzz.formats import FORMATS
  from tests.fuzz.trying import MEMORY, SECONDS

  names = options.only.split(',') if options.only else list(FORMATS)
  if unknown := set(names) - FORMATS.keys():
    parser.error(f'--only: {", ".join(sorted(unknown))}; known: {", ".join(FORMATS)}.')
  rows, faults = [], 0
  print(f'{"format":24}{"mutations":>10}{"sentences":>10}{"accepted":>10}{"faults":>8}'
        f'{"MiB":>6}{"s":>7}')  # fmt: skip
  with tempfile.TemporaryDirectory(prefix='fesem_fuzz') as box:
    for name in names:
      found, seconds = _of_format(name, options, box)
      counts = collections.Counter(each['outcome'] for each in found)
      bad = [
        {'mutation': i} | each for i, each in enumerate(found)
        if each['outcome'] not in ('sentence', 'accepted')
      ]  # fmt: skip
      faults += len(bad)
      peak = max(each.get('mib', 0) for each in found)
      rows.append({
        'format': name, 'mutations': len(found), 'sentences': counts['sentence'],
        'accepted': counts['accepted'], 'faults': len(bad),
        'most_mib': peak, 'seconds': round(seconds, 1), 'of_faults': bad[:50],
      })  # fmt: skip
      print(f'{name:24}{len(found):10}{counts["sentence"]:10}{counts["accepted"]:10}'
            f'{len(bad):8}{peak:6}{seconds:7.0f}', flush=True)  # fmt: skip
      kinds = collections.Counter(
        f'{each["outcome"]}: {each["what"][:150]}' for each in bad
      )
      for what, count in kinds.most_common(12):
        print(f'    {count} x {what}', flush=True)
  if options.json:
    bounds = {'seconds': SECONDS, 'mib': MEMORY >> 20}
    made = {'mutations': options.mutations, 'seed': options.seed, 'bounds': bounds}
    made |= {'formats': rows}
    pathlib.Path(options.json).write_text(json.dumps(made, indent=1) + '\n')
  if faults:
    raise SystemExit(f'{faults} faults.')


if __name__ == '__main__':
  main()
