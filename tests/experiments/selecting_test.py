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


def test_selections_that_lack_something_are_refused():
  for select, count in [
    ('power_of_choice', 2), ('power_of_choice:x', 2), ('power_of_choice:5', 0),
    ('best', 2), ('uniform:3', 2), ('names:', 2), ('trace_seconds:f', 2),
  ]:  # fmt: skip
    with pytest.raises(UserError, match='select'):
      selecting.build(config(select, count))
