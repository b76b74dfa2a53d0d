"""Partitions are drawn before anything runs."""

import pytest
from PIL import Image

from tests.support.commands import call


def test_partitions_are_drawn_side_by_side(tmp_path):
  done = call(
    'figures',
    '--partitions=iid,labels,rotated+dirichlet',
    '--dataset=digits',
    '--num_clients=12',
    '--rotations=0,90',
    '--output=out/partitions.png',
    cwd=tmp_path,
  )
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[0].startswith('iid: 12 clients of 119 to 120 training examples')
  assert lines[1].startswith('labels: 12 clients of ')
  assert ', 2 classes at the median, ' in lines[1]
  assert lines[2].startswith('rotated+dirichlet: 12 clients of ')
  assert lines[3] == 'out/partitions.png (and .svg)'
  width, height = Image.open(tmp_path / 'out' / 'partitions.png').size
  assert width > 2 * height / 1.5


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ([], 'Name at least one workdir, fesem-figures WORKDIR, or --partitions'),
    (['--partitions=iid', 'runs/a'], '--partitions draws no runs; leave out the wo'),
    (['--partitions=iid,iid'], '--partitions=iid,iid names one twice'),
    (['--partitions=iid,spiral'], '--partition=spiral is unknown; choose one of'),
    (['--partitions=iid', '--partition=iid'], '--partition is of one run; name it'),
    (['--partitions=iid', '--output=.'], '--output=. must name a file'),
  ],
)
def test_what_cannot_be_drawn_is_named(tmp_path, arguments, message):
  done = call('figures', '--dataset=digits', *arguments, cwd=tmp_path)
  assert done.returncode == 1
  assert message in done.stderr
