"""What is installed, from where, and that nothing else is fetched."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from tests.support import commands
from tests.support.nights import rest_by_night

ROOT = pathlib.Path(__file__).parents[1]
LISTS = ['constraints.txt', 'constraints-newest.txt']
_PIN = re.compile(r'^([A-Za-z0-9._-]+)==([^\s;\\]+)(.*(?:\n .*)*)', re.MULTILINE)


def name_of(text):
  return re.sub(r'[-_.]+', '-', text).lower()


def pins(path):
  """Name -> (version, what follows)."""
  return {name_of(n): (v, rest) for n, v, rest in _PIN.findall(path.read_text())}


@pytest.mark.parametrize('name', LISTS)
def test_every_package_that_ci_installs_is_pinned_with_digests(name):
  pinned, expected = pins(ROOT / 'requirements' / name), pins(ROOT / name)
  alone = pins(ROOT / 'requirements' / f'demo-{name}')
  assert not pinned.keys() & alone.keys()  # Each package is listed once.
  for more in ('build.txt', f'demo-{name}', f'tpu-{name}'):
    pinned |= pins(ROOT / 'requirements' / more)
  assert len(pinned) > 150
  for package, (version, rest) in pinned.items():
    assert re.search(r'--hash=sha256:[0-9a-f]{64}', rest), package
    if package in expected:
      assert version == expected[package][0], package
    else:  # Of other systems.
      assert re.search(r"sys_platform == '(win32|emscripten)'", rest), package
  assert expected.keys() <= pinned.keys()


def test_licenses_and_the_bill_of_materials_are_those_of_what_is_installed():
  made = subprocess.run(
    [sys.executable, ROOT / '.ci' / 'licenses', '--check'],
    capture_output=True,
    text=True,
    check=False,
  )
  assert made.returncode == 0 or made.stderr.startswith('note: '), made.stderr
  bill = json.loads((ROOT / 'sbom.cdx.json').read_text())
  names = {part['name'] for part in bill['components']}
  assert {'jax', 'flax', 'numpy', 'optax'} <= names
  assert all(part['version'] and part['licenses'] for part in bill['components'])


_OFFLINE: list[bool] = []
_ASKS = (
  'socket.connect', 'socket.getaddrinfo', 'socket.gethostbyname', 'socket.sendto',
)  # fmt: skip


def _refuse(event, args):
  if _OFFLINE and event in _ASKS:
    raise AssertionError(f'{event} {args[1:]}')


@pytest.mark.slow
@pytest.mark.parametrize('module', rest_by_night(['run', 'compare']))
def test_no_connection_is_made_unless_a_flag_asks(module, tmp_path):
  sys.addaudithook(_refuse)
  _OFFLINE.append(True)
  small = ['--num_clients=8', '--rounds=1', '--hidden=4', '--workdir=made']
  which = {
    'run': ['--dataset=digits', '--algorithm=fed_avg', '--partition=iid', *small],
    'compare': ['--flagfile=demo', '--algorithms=fed_avg', '--num_seeds=1', *small],
  }[module]
  try:
    result = commands.call(
      module, *which, '--report_html', cwd=tmp_path, figures=module == 'compare'
    )
    with pytest.raises(AssertionError, match='getaddrinfo'):
      __import__('socket').getaddrinfo('example.org', 443)
  finally:
    _OFFLINE.clear()
  assert result.returncode == 0, result.stderr
  assert (tmp_path / 'made' / 'report.html').exists()
