"""Presets are found by their names, in the source tree and outside of it."""

import pathlib

import pytest

from experiments import flagfiles
from tests.support import commands

_PRESETS = pathlib.Path(flagfiles.__file__).parent / 'presets'


def test_presets_are_named_by_their_place():
  names = flagfiles.names()
  assert {'demo', 'femnist', 'table2', 'table2/fesem_4'} <= set(names)
  assert len(names) == len(list(_PRESETS.rglob('*.flags')))


@pytest.mark.parametrize(
  'given',
  [['--flagfile=demo'], ['-flagfile=demo'], ['--flagfile', 'demo'],
   ['--flagfile=demo.flags'], ['--flagfile=experiments/presets/demo.flags']],
)  # fmt: skip
def test_a_preset_stands_for_its_flags_in_their_place(given, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  expanded = flagfiles.expand(['compare', '--seed=1', *given, '--rounds=3'])
  assert expanded[:3] == [
    'compare',
    '--seed=1',
    '--algorithms=non_fed,fed_avg,fesem(4)',
  ]
  assert expanded[-2:] == ['--workdir=runs/demo', '--rounds=3']
  assert not any('#' in argument or 'flagfile' in argument for argument in expanded)


@pytest.mark.parametrize('name', flagfiles.names())
def test_presets_within_presets_are_found_outside_of_the_tree(
  name, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  expanded = flagfiles.expand(['run', f'--flagfile={name}'])
  assert len(expanded) > 2
  assert not any('flagfile' in argument for argument in expanded)


def test_files_of_the_user_are_left_to_the_parser_of_flags(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'demo').write_text('--rounds=7\n')
  for argv in (
    ['run', '--flagfile=demo'],
    ['run', '--flagfile', 'demo', '--seed=1'],
    ['run', '--flagfile=none'],
    ['run', '--flagfile'],
    ['run', '--algorithm=fesem', '--', '--flagfile=table2'],
  ):
    assert flagfiles.expand(argv) == argv


def test_a_file_of_the_user_may_name_presets(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'my.flags').write_text('# Mine.\n--flagfile=demo\n\n--rounds=3\n')
  (tmp_path / 'all.flags').write_text('--flagfile=demo\n--flagfile=all.flags\n')
  of_demo = flagfiles.expand(['run', '--flagfile=demo'])[1:]
  expanded = flagfiles.expand(['run', '--flagfile=my.flags', '--seed=1'])
  assert expanded == ['run', *of_demo, '--rounds=3', '--seed=1']
  # What names itself is left to absl, which says so.
  expanded = flagfiles.expand(['run', '--flagfile', 'all.flags'])
  assert expanded == ['run', *of_demo, '--flagfile=all.flags']
  (tmp_path / 'outer.flags').write_text('--flagfile=my.flags\n--seed=2\n')
  expanded = flagfiles.expand(['run', '--flagfile=outer.flags'])
  assert expanded == ['run', *of_demo, '--rounds=3', '--seed=2']


@pytest.mark.parametrize(
  ('line', 'message'),
  [('--noresume=x', 'does not take an argument'), ('--seed=\xff', 'a file of text')],
)
def test_what_a_flag_file_may_not_hold_is_said_in_a_sentence(tmp_path, line, message):
  (tmp_path / 'my.flags').write_bytes(f'{line}\n'.encode('latin-1'))
  found = commands.call('run', '--flagfile=my.flags', cwd=tmp_path)
  assert found.returncode == 1
  assert found.stderr.startswith('error: ')
  assert message in found.stderr


def test_a_folder_of_the_same_name_hides_no_preset(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'table2').mkdir()
  assert flagfiles.preset('table2') == _PRESETS / 'table2.flags'
