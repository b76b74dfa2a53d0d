"""`make test` and `make test-night` together run every test once."""

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
