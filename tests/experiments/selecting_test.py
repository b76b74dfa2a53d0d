"""--select, and the files that it reads."""

import pytest

from experiments import selecting
from fesem_jax.utils.errors import UserError


def config(select, count=2, **others):
  return {'select': select, 'clients_per_round': count, **others}


def test_the_flag_names_a_selection(tmp_path):
  names, csv, jsonl = (tmp_path / n for n in ('names.txt', 'trace.csv', 'trace.jsonl'))
  names.write_text('c1\n\n c3 \n')
  csv.write_text('\ufeffclient,from,to,note\nc1,1,2,x\n"c,3",2,5,\n')
  jsonl.write_text(
    '{"client": "c1", "from": 1, "to": 2}\n{"client": "c,3", "from": 2, "to": 5}\n'
  )
  assert selecting.build(config('uniform', 3)) == 3
  found = selecting.build(config('power_of_choice:5'))
  assert found.name == 'power_of_choice(2, candidates=5)'
  assert selecting.build(config(f'names:{names}', 0)).clients_per_round == 2
  from_csv, from_jsonl = (selecting.build(config(f'trace:{f}')) for f in (csv, jsonl))
  assert from_csv.name == from_jsonl.name
  assert 'rounds' in from_csv.name
  seconds = config(f'trace_seconds:{csv}', device_profile='phone')
  assert 'seconds' in selecting.build(seconds).name


def test_a_run_is_of_the_contents_of_its_file(tmp_path):
  file = tmp_path / 'names.txt'
  file.write_text('c1\n')
  first = selecting.identity(config(f'names:{file}'))
  file.write_text('c2\n')
  assert first != selecting.identity(config(f'names:{file}'))
  assert selecting.identity(config('power_of_choice:5')) == {}
  assert selecting.identity({}) == {}


def test_bad_values_end_in_a_sentence(tmp_path):
  file = tmp_path / 'f'
  for select, count, text, match in [
    ('power_of_choice', 2, '', 'give the number of candidates'),
    ('power_of_choice:x', 2, '', 'give the number of candidates'),
    ('power_of_choice:5', 0, '', 'needs `clients_per_round`'),
    ('power_of_choice:2', 3, '', 'has fewer candidates'),
    ('best', 2, '', 'is unknown; choose uniform'),
    ('uniform:3', 2, '', 'is unknown; choose uniform'),
    ('names:', 2, '', 'is unknown; choose uniform'),
    ('names:absent.txt', 2, '', 'Cannot read absent.txt'),
    (f'names:{file}', 2, '\n', 'names no client'),
    (f'trace:{file}', 2, 'a,b\n1,2\n', 'line 2: each line of a trace has a client'),
    (f'trace:{file}', 2, 'client,from,to\nc1,1\n', 'line 2: each line of a trace'),
    (f'trace:{file}', 2, 'client,from,to\nc1,x,2\n', 'must be numbers'),
    (f'trace:{file}', 2, 'client,from,to\n,1,2\n', 'line 2 has no client'),
    (f'trace:{file}', 2, '{"client": "c1"', 'damaged or not what it should be'),
    (f'trace:{file}', 2, '', 'has no interval'),
    (f'trace_seconds:{file}', 2, '', 'needs `device_profile`'),
  ]:
    file.write_text(text)
    with pytest.raises(UserError, match=match):
      selecting.build(config(select, count))
