"""`make test` and `make test-night` together run every test once."""

import itertools
import re

from tests.support.commands import ROOT


def test_every_file_with_optimized_tests_is_among_those_of_make_test():
  text = (ROOT / 'Makefile').read_text().partition('OPTIMIZED :=')[2]
  named = text.partition('_test.py,\\')[2].partition('))')[0].split()
  marked = [
    str(path.relative_to(ROOT / 'tests')).removesuffix('_test.py')
    for path in (ROOT / 'tests').rglob('*_test.py')
    if 'pytest.mark.' + 'optimized' in path.read_text()
  ]
  assert sorted(named) == sorted(marked)
  assert len(marked) > 3


def test_make_test_and_make_test_night_run_each_test_once():
  text = (ROOT / 'Makefile').read_text()
  chosen = []
  for target in ('test', 'test-night'):
    lines = text.partition(f'\n{target}: install\n')[2].partition('\n\n')[0]
    result = re.findall(r"-m (?:'([^']*)'|(\w+))", lines)
    chosen += [quoted or word for quoted, word in result]
  assert len(chosen) == 4
  for optimized, nightly in itertools.product([False, True], repeat=2):
    marks = {'optimized': optimized, 'nightly': nightly}
    assert sum(eval(each, {}, dict(marks)) for each in chosen) == 1, marks
