"""--help is a page; topics, methods and flags have theirs."""

import re
import subprocess
import sys

import pytest
from absl import flags

from experiments import flags as experiment_flags
from experiments import run as experiment
from experiments import start, usage
from experiments.flag_tables import GROUPS, entry, method
from fesem_jax import algorithms
from tests.support.commands import ROOT, call


@pytest.fixture
def told(capsys):
  """What --help=TOPIC of a run prints."""
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()

  def ask(form='--help'):
    with pytest.raises(SystemExit) as ended:
      start.parse_flags(['run', '--rounds=3', form])
    said = capsys.readouterr()
    assert ended.value.code == bool(said.err)
    return said.out or said.err

  return ask


def test_help_is_one_page_of_a_run():
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.run', '--help'],
    cwd=ROOT, capture_output=True, text=True, check=True,
  )  # fmt: skip
  lines = done.stdout.splitlines()
  assert len(lines) <= 40
  assert max(map(len, lines)) <= 88
  for topic in GROUPS:
    assert any(line.startswith(f'  --help={topic} ') for line in lines), topic
  assert sum('fesem-run' in line for line in lines) >= 3
  assert any(line.startswith('  --algorithm=fesem ') for line in lines)
  assert '--chex' not in done.stdout


def test_each_topic_has_all_of_its_flags(told):
  for topic, group in GROUPS.items():
    if topic == 'methods':
      continue
    said = told(f'--help={topic}')
    for one in group:
      assert re.search(rf'\n  --(\[no\])?{one.name}\b', said), one.name
    assert max(map(len, said.splitlines())) <= 88
  everything = told('--helpfull')
  for group in GROUPS.values():
    for one in group:
      assert re.search(rf'\n  --(\[no\])?{one.name}\b', everything), one.name
  assert '--verbosity' in everything


def test_a_method_has_its_options_with_kinds_defaults_and_flags_that_act(told):
  said = told('--help=FedProx')
  assert said == told('--help=fed_prox')
  assert '--algorithm=fed_prox' in said
  assert '\n  --prox_mu=0.1  (number)\n' in said
  assert '\n  --weighting=by_examples  (uniform, by_examples, by_weight)\n' in said
  assert 'Probability that a client straggles in a round.' in said
  assert '--learning_rate' in said
  assert '--patience' not in said  # It waits for clusters.
  assert '--patience' in told('--help=ifca')
  assert '--num_clusters=4' in told('--help=hypo_cluster')
  assert 'It has no options.' in told('--help=fed_sgd')


def test_every_method_is_listed_and_described(told):
  listed = told('--help=methods')
  for name in algorithms.METHODS:
    assert f'\n  {name} ' in listed
    assert told(f'--help={name}').startswith(f'--algorithm={name}')


def test_one_flag_is_described(told):
  said = told('--help=local_steps')
  assert said.startswith('  --local_steps=0  (whole number)\n')
  assert 'instead of epochs passes' in ' '.join(said.split())


@pytest.mark.parametrize(
  ('topic', 'near'),
  [('fesm', 'fesem'), ('learnin_rate', 'learning_rate'), ('trainings', 'training')],
)
def test_an_unknown_topic_gets_the_nearest(told, topic, near):
  said = told(f'--help={topic}')
  assert said.startswith(f'error: --help={topic} is no topic, method or flag')
  assert re.search(rf'did you mean .*\b{near}\b', said)


def test_every_flag_says_what_it_is(told):
  told()
  for group in GROUPS.values():
    for one in group:
      words = usage.text(one.name).partition('\n')[2]
      assert len(words.split()) > 2, one.name
      assert 'see `' not in one.help, one.name


def test_options_of_methods_are_documented():
  for name in algorithms.METHODS:
    for option in algorithms.options(name):
      assert method.text_for(name, option), (name, option)


def test_a_flag_is_as_its_argument_is_documented():
  def train(rate: float = 0.5, names: tuple[str, ...] = ('a',), *, deep: bool = True):
    """Trains.

    Args:
      rate: mu, the rate; see
        `a_paper`.
      names: names of
        layers.
      deep: whether it is.

    Raises:
      UserError: never.
    """

  assert entry.documented(train) == {
    'rate': 'mu, the rate.', 'names': 'Names of layers.', 'deep': 'Whether it is.',
  }  # fmt: skip
  assert entry.of(train, 'rate', 'my_rate', more='More.') == entry.Flag(
    'float', 'my_rate', 0.5, 'mu, the rate. More.', {}
  )
  assert entry.of(train, 'names')[:3] == ('list', 'names', ['a'])
  assert entry.of(train, 'deep', default=False)[:3] == ('bool', 'deep', False)
  assert entry.of(train, 'rate', choices=('x',)).extra == {'enum_values': ('x',)}


def test_binaries_without_topics_list_their_flags():
  done = call('report', '--help', cwd=ROOT)
  assert '--figures  (text)' in done.stdout
  assert '--help=data' not in done.stdout


def test_what_determines_a_run_is_in_its_configuration():
  names = experiment_flags.common_names()
  assert len(set(names)) == len(names)
  assert {'seed', 'rounds', 'dp', 'partition', 'eval_every'} <= set(names)
  assert not {'data_dir', 'report', 'num_devices', 'process_id', 'resume'} & set(names)
