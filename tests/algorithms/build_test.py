"""Building methods by name."""

import pathlib
import re

import pytest

from fesem_jax import algorithms
from tests.support import helpers


@pytest.mark.parametrize(
  ('written', 'name'),
  [
    ('FedAvg', 'fed_avg'), ('FeSEM-MA', 'fesem_ma'), ('IFCA', 'hypo_cluster'),
    ('pFedMe', 'p_fed_me'), ('Per-FedAvg', 'per_fed_avg'), ('local', 'non_fed'),
    ('fed_avg', 'fed_avg'),
  ],
)  # fmt: skip
def test_methods_are_found_by_the_names_that_papers_write(written, name):
  assert algorithms.named(written) == name
  assert algorithms.options(written) == algorithms.options(name)


def test_no_two_methods_share_a_name_without_punctuation():
  plain = [name.replace('_', '') for name in algorithms.METHODS]
  assert len({*plain, *algorithms.ALIASES}) == len(plain) + len(algorithms.ALIASES)


def test_a_new_method_is_named_by_its_own_files_and_these_alone():
  """With its own file and test six, and costs.md only if it sends other things."""
  root = pathlib.Path(__file__).parents[2]
  names = set(algorithms.METHODS) - {'fesem_ma'}  # FeSEM with one of its options.
  lists = {
    str(path.relative_to(root))
    for folder in ('fesem_jax', 'experiments', 'tests', 'benchmarks', 'docs')
    for kind in ('*.py', '*.md', '*.flags')
    for path in (root / folder).rglob(kind)
    if names <= set(re.findall(r'\w+', path.read_text()))
  }
  assert lists == {
    'fesem_jax/algorithms/__init__.py',
    'docs/methods.md',
    'docs/api/methods.md',
    'docs/costs.md',
  }


def test_wrappers_keep_the_training_of_their_method():
  # Or figures would train its clients without the penalty.
  options = {'num_clusters': 2, 'recluster_every': 2}
  assert algorithms.build('fesem', helpers.local(), **options).train is not None
