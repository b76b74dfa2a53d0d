"""Partitions are drawn before anything runs."""

import json

import numpy as np
import pytest
from PIL import Image

from experiments.figures import images_of_clusters
from fesem_jax import data, plots
from tests.support.commands import call
from tests.support.reported import write_comparison


@pytest.fixture(autouse=True)
def style_of_pages():
  """Binaries choose a style for their process, which is that of the tests here."""
  yield
  plots.use_style('page')


def test_partitions_are_drawn_side_by_side(tmp_path):
  done = call(
    'figures', '--partitions=iid,labels,rotated+dirichlet', '--dataset=digits',
    '--num_clients=12', '--rotations=0,90', '--label_swaps=1-7',
    '--output=out/partitions.v1.png', cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[0].startswith('iid: 12 clients of 119 to 120 training examples')
  assert lines[1].startswith('labels: 12 clients of ')
  assert ', 2 classes at the median, ' in lines[1]
  assert lines[2].startswith('rotated+dirichlet: 12 clients of ')
  assert lines[3] == 'out/partitions.v1.png (and .svg)'
  width, height = Image.open(tmp_path / 'out' / 'partitions.v1.png').size
  assert width > 2 * height / 1.5


@pytest.mark.parametrize(
  ('arguments', 'subject'),
  [([], 'workdir'), (['--partitions=iid,spiral'], 'spiral')],
)
def test_what_cannot_be_drawn_is_named(tmp_path, arguments, subject):
  done = call('figures', '--dataset=digits', *arguments, cwd=tmp_path)
  assert done.returncode == 1
  assert subject in done.stderr


def test_images_of_a_regression_have_no_classes(tmp_path):
  rng = np.random.default_rng(0)
  x = rng.random((24, 5, 5)).astype(np.float32)
  arrays = {'x': x, 'y': x.mean(axis=(1, 2)), 'client': np.arange(24) % 2}
  np.savez(tmp_path / 'own.npz', **arrays, task='regression')
  done = call(
    'figures', '--partitions=rotated', '--dataset=npz:own.npz', '--num_clients=4',
    cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  line, *_ = done.stdout.splitlines()
  assert line == 'rotated: 4 clients of 19 to 19 training examples (median 19)'


def test_images_of_clusters_are_of_one_class():
  train, _ = data.load(
    'digits', partition='rotated+labels', num_clients=12, rotations=[0, 180]
  )
  images = images_of_clusters(train)
  wanted = np.bincount(train.y).argmax()
  for image, group in zip(images, (0, 1), strict=True):
    of_group = [train.client(i) for i in range(group, 12, 2)]
    assert any(
      (image == one).all() and label == wanted
      for x, y in of_group
      for one, label in zip(x, y, strict=True)
    )
  plain, _ = data.load('digits', num_clients=4)
  assert images_of_clusters(plain) is None


def test_figures_of_a_comparison_are_drawn_again_over_seeds(tmp_path):
  folder = write_comparison(tmp_path / 'runs')
  table = json.loads((folder / 'table.json').read_text())
  row = {'method': 'fesem(2)', 'mean': 2.0, 'low': 1.0, 'high': 3.0, 'p': 0.01}
  table['differences'] = {
    'reference': 'fed_avg', 'of': '', 'task': 'classification', 'deployed': [row],
  }  # fmt: skip
  (folder / 'table.json').write_text(json.dumps(table))
  done = call('figures', 'runs', '--style=paper', '--spread=all', cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  drawn = {path.name for path in (folder / 'plots').iterdir()}
  for name in ('convergence', 'clients', 'differences'):
    assert {f'{name}.png', f'{name}.svg', f'{name}.pdf'} <= drawn
  said = (folder / 'plots' / 'convergence.svg').read_text()
  assert 'thin lines: seeds' in said
  # A table of fewer seeds than there are runs.
  (folder / 'table.json').write_text(json.dumps(table | {'seeds': [0]}))
  assert call('figures', 'runs', cwd=tmp_path).returncode == 0
  assert 'one seed' in (folder / 'plots' / 'convergence.svg').read_text()
  (folder / 'table.json').write_text('{"methods": []}')
  done = call('figures', 'runs', cwd=tmp_path)
  assert 'runs has no finished runs of fesem-compare' in done.stderr
