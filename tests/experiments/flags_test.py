"""The tables of flags, and configurations that they give."""

import re

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import run as experiment
from experiments.flag_tables import GROUPS
from tests.experiments.binaries_test import QUICK, refuses
from tests.support.commands import ROOT


@pytest.fixture
def configured():
  """The configuration of some flags."""
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()

  @flagsaver.flagsaver
  def made(*given):
    flags.FLAGS(['run', *QUICK, *given])
    return experiment.chosen_configuration()

  return made


def test_every_flag_is_in_the_tables_once_and_all_binaries_have_few():
  names = [flag.name for group in GROUPS.values() for flag in group]
  assert len(names) == len(set(names))
  defined = re.compile(r"DEFINE\w*\(\s*(?:[\w.]+\(\),\s*)?'(\w+)'")
  files = [
    *(ROOT / 'experiments').rglob('*.py'),
    *(ROOT / 'reproductions').glob('*.py'),
  ]
  others = {name for file in files for name in defined.findall(file.read_text())}
  assert len(others | set(names)) <= 160


def test_equal_partitions_have_one_text(configured):
  texts = 'dirichlet(0.1)+rotated(2)', 'rotated(groups=2) + dirichlet(alpha=0.1)'
  partitions = [configured(f'--partition={text}')['partition'] for text in texts]
  assert partitions == ['rotated(groups=2)+dirichlet(alpha=0.1)'] * 2
  with refuses('partition'):
    configured('--partition=rotate(2)')
