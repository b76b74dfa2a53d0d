"""fesem-report draws figures of runs and comparisons into a folder."""

import pytest

from tests.support.commands import call
from tests.support.reported import write_comparison


@pytest.fixture
def compared(tmp_path):
  """The workdir of a comparison."""
  return write_comparison(
    tmp_path / 'runs', seeds=(0,), methods=('fed_avg', 'fesem(2)')
  )


def test_figures_of_runs_and_comparisons_have_the_formats_asked_for(compared, tmp_path):
  run = compared / 'fed_avg/seed0'
  done = call(
    'report', compared, run, '--figures=drawn', '--format=pdf,png', cwd=tmp_path,
    figures=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  names = {path.name for path in (tmp_path / 'drawn' / compared.name).iterdir()}
  stems = ('convergence', 'classes', 'differences', 'fesem(2)_clusters')
  assert names >= {f'{stem}.{kind}' for stem in stems for kind in ('pdf', 'png')}
  assert (tmp_path / 'drawn/seed0/convergence.pdf').is_file()
  assert not (run / 'plots').exists()
  assert not (tmp_path / 'report.html').exists()


@pytest.mark.parametrize(
  ('arguments', 'subject'),
  [([], 'workdir'), (['runs', '--figures=x', '--format=gif'], 'format')],
)
def test_what_cannot_be_drawn_is_named(compared, tmp_path, arguments, subject):
  done = call('report', *arguments, cwd=tmp_path)
  assert done.returncode == 1
  assert subject in done.stderr
