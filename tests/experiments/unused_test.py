"""Flags that a run would not use: contradictions are refused, the others noted."""

import json

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import flags as experiment_flags
from experiments import launch_local, local_steps, start, unused
from experiments import run as experiment
from experiments.errors import in_flags
from tests.experiments.binaries_test import LOGISTIC, QUICK, refuses
from tests.support.commands import call


@pytest.fixture
def parse():
  """Parses flags; gives a configuration and the machine's flags."""
  if 'dataset' not in flags.FLAGS:
    experiment.define_flags()

  @flagsaver.flagsaver
  def parsed(*given):
    flags.FLAGS(['run', *QUICK, *given])
    return experiment.chosen_configuration(), experiment_flags.machine()

  return parsed


@pytest.mark.parametrize(
  ('given', 'note'),
  [
    (['--model=logistic'], '--hidden=8 has no effect: it is for --model=mlp.'),
    (
      ['--partition=iid', '--partition_groups=2'],
      '--partition_groups=2 has no effect: it is for --partition=rotated, '
      'label_permuted, label_swapped or corrupted, or --dataset=synthetic_linear or '
      'synthetic_mixture or synthetic_table.',
    ),
    (['--partition=iid', '--disjoint_groups'], '--disjoint_groups=True has no effect'),
    (['--dirichlet_alpha=0.1'], '=dirichlet, dirichlet_labels or unequal.'),
    (['--classes_per_client=3'], 'it is for --partition=shards.'),
    (['--labels_per_client=3'], 'it is for --partition=labels or power_law.'),
    (['--target=0.5', '--eval_every=0'],
     'rounds to --target=0.5 are unknown: with --eval_every=0 only the last round is'),
    (['--drift_rounds=2,9', '--rounds=3'],
     '--drift_rounds=2,9 has changes after --rounds=3, which no round sees.'),
    (['--partition=iid', '--rotations=0,15'], '--rotations=0,15 has no effect: it is'),
    (['--local_epochs=7', '--local_steps=3'],
     '--local_epochs=7 has no effect: it is for --local_steps=0.'),
    (['--beta=0.2'], '--beta=0.2 has no effect: it is for --aggregation=trimmed_mean'),
    (['--norm_bound=1'], '--norm_bound=1.0 has no effect'),
    (['--algorithm=flux', '--warmup_rounds=3', '--rounds=3'],
     'with --warmup_rounds=3 and --rounds=3, no round of flux trains clusters; give'),
    (['--algorithm=fed_drift', '--check_every=4', '--rounds=3'],
     'with --check_every=4 and --rounds=3, fed_drift neither detects drift nor merges'),
    (['--algorithm=fed_cluster', '--min_rounds=4', '--check_every=5', '--rounds=5'],
     'with --min_rounds=4, --check_every=5, --rounds=5, no round trains parts of a'),
    (['--algorithm=fed_cluster', '--min_rounds=5', '--check_every=5', '--rounds=10'],
     'with --min_rounds=5, --check_every=5, --rounds=10, no round trains parts of a'),
    (['--recluster_every=6', '--rounds=5'],
     '--recluster_every=6 has no effect: the run ends after --rounds=5.'),
    (['--algorithm=l2gd', '--learning_rate=0.01', '--rounds=20'],
     'all steps together move models about 1.6 % of the way to their mean: l2gd is '
     'close to non_fed; give a larger --l2gd_lambda, at most 25.'),
    (['--algorithm=per_fed_avg', '--hessian_delta=0.1'],
     '--hessian_delta=0.1 has no effect: it is for --meta_gradient=hessian_free.'),
    (['--prox_weighting=paper', '--prox_lambda=0'],
     '--prox_weighting=paper has no effect: there is no penalty, --prox_lambda=0.0.'),
    (['--init_clients=13'], 'effect: all 12 clients are in the first clustering.'),
  ],
)  # fmt: skip
def test_what_a_run_does_not_use_is_noted(given, note, parse):
  said = [in_flags(n) for n in unused.notes(*parse(*given), 12)]
  assert len(said) == 1
  assert note in said[0]


@pytest.mark.parametrize(
  'given',
  [[], ['--hidden=7'], ['--local_epochs=7'],
   ['--partition=label_permuted', '--partition_groups=2', '--disjoint_groups'],
   ['--dataset=synthetic_linear', '--partition=natural', '--partition_groups=2'],
   ['--partition=unequal', '--dirichlet_alpha=2'],
   ['--partition=shards', '--classes_per_client=3'],
   ['--partition=rotated+labels', '--labels_per_client=3', '--partition_groups=2'],
   ['--patience=3'], ['--aggregation=krum', '--beta=0.2'],
   ['--aggregation=norm_bound', '--norm_bound=1'],
   ['--init_clients=12'], ['--prox_weighting=paper', '--prox_lambda=0.1'],
   ['--algorithm=fed_cluster', '--min_rounds=4', '--check_every=5', '--rounds=6'],
   ['--algorithm=l2gd', '--learning_rate=0.1', '--rounds=13'],
   ['--algorithm=l2gd', '--l2gd_lambda=0'], ['--algorithm=fed_nova'],
   ['--loss_check_every=5', '--rounds=5'], ['--shared_start=on'],
   ['--algorithm=fed_avg', '--unseen_fraction=0.25']],
)  # fmt: skip
def test_what_a_run_uses_is_not_noted(given, parse):
  assert not unused.notes(*parse(*given), 12)


@pytest.mark.parametrize(
  ('given', 'sizes', 'note'),
  [
    (['--algorithm=fed_nova', '--local_steps=3'], [9, 50],
     'all clients take 3 local steps a round: fed_nova is fed_avg.'),
    (['--algorithm=fed_nova', '--local_epochs=2'], [11, 20, 0],
     'all clients take 4 local steps a round: fed_nova is fed_avg.'),
    (['--algorithm=fed_nova'], [10, 11], None),
    (['--algorithm=fed_nova', '--straggler_fraction=0.5'], [10, 10], None),
    (['--algorithm=per_fed_avg'], [10, 9, 11],
     '2 of 3 clients have fewer batches in a round than the 2 of one step of '
     'per_fed_avg, and do not train; raise --local_epochs or lower --batch_size.'),
    (['--algorithm=per_fed_avg', '--meta_gradient=hessian_free'], [20, 21],
     '1 of 2 clients have fewer batches in a round than the 3 of one'),
    (['--algorithm=per_fed_avg', '--local_epochs=2'], [10, 9, 11], None),
    (['--algorithm=fed_avg'], [10, 10], None),
    (['--algorithm=fed_prox'], [10, 3, 0],
     '--prox_mu=0.1 has no effect: all clients take one local step a round, from the '
     'model that it pulls them to; fed_prox is fed_avg.'),
    (['--algorithm=fed_prox', '--prox_mu=0'], [10, 10], None),
    (['--algorithm=fed_prox'], [10, 11], None),
    (['--algorithm=fesem', '--prox_lambda=1', '--batch_size=0'], [10, 50],
     '--prox_lambda=1.0 has no effect: all clients take one local step a round'),
    (['--algorithm=fesem'], [10, 10], None),
    (['--algorithm=fed_group', '--prox_mu=1', '--local_steps=1'], [10, 50],
     '--prox_mu=1.0 has no effect: all clients take one local step a round'),
    (['--algorithm=ditto'], [10, 10], None),
    (['--algorithm=fed_avg', '--optimizer=momentum'], [10, 10],
     '--momentum=0.9 has no effect: all clients take one local step a round, and the'),
    (['--algorithm=fed_avg', '--optimizer=momentum'], [10, 11], None),
    (['--algorithm=fed_avg', '--optimizer=momentum', '--nesterov'], [10, 10], None),
    (['--algorithm=fed_avg', '--optimizer=momentum', '--keep_optimizer_state'],
     [10, 10], None),
    (['--algorithm=centralized', '--optimizer=momentum'], [10, 10], None),
    (['--algorithm=fed_avg', '--optimizer=adam'], [10, 10],
     '--optimizer=adam follows the signs of gradients alone: all clients take one'),
  ],
)  # fmt: skip
def test_steps_with_which_a_method_does_nothing_of_its_own(given, sizes, note, parse):
  config, _ = parse('--batch_size=10', *given)
  said = [in_flags(n) for n in local_steps.notes(config, sizes)]
  assert [n[: len(note or '')] for n in said] == ([note] if note else [])


@pytest.mark.parametrize(('given', 'sizes', 'noted'), [
    (['--algorithm=fed_avg'], [9, 50, 0], True),
    (['--algorithm=fed_avg'], [9, 9, 0], False),
    (['--algorithm=fed_avg', '--weighting=uniform'], [9, 50], False),
    (['--algorithm=scaffold'], [9, 50], False),
    (['--algorithm=fed_avg', '--select=uniform'], [9, 50], False),
])  # fmt: skip
def test_sizes_that_count_twice_are_noted(given, sizes, noted, parse):
  selected = ('--clients_per_round=2', '--select=power_of_choice:5')
  config, _ = parse(*selected, *given)
  said = [in_flags(n) for n in unused.notes_on_weights(config, sizes)]
  text = '--select=power_of_choice:5 draws clients by their numbers of examples, and --'
  assert [n[: len(text)] for n in said] == [text] * noted


def test_patience_without_clusters_is_refused_of_one_run(tmp_path):
  flags = ('--dataset=digits', '--num_clients=8', '--model=logistic', '--rounds=1')
  made = call('run', *flags, '--algorithm=fed_avg', '--patience=3', cwd=tmp_path)
  assert made.returncode
  assert 'error: --patience=3 would never end the run: it waits' in made.stderr


def test_a_comparison_notes_what_a_method_does_not_use(tmp_path):
  made = call(
    'compare', '--dataset=digits', '--num_clients=8', '--model=logistic', '--rounds=1',
    '--algorithms=non_fed', '--num_seeds=1', '--patience=3', '--unseen_fraction=0.25',
    cwd=tmp_path,
  )  # fmt: skip
  assert not made.returncode, made.stderr
  assert 'Note: --patience=3 has no effect: there are no clusters.' in made.stdout
  assert 'Note: the 2 clients of --unseen_fraction were not evaluated' in made.stdout


def test_contradictions_are_refused(parse):
  late, _ = parse('--late_joins', '--init_clients=30')
  with refuses('--init_clients=30 with --late_joins leaves none of the 12 clients'):
    unused.check(late, 12)
  unused.check(late, 31)
  krum, _ = parse('--aggregation=krum', '--krum_models=13')
  with refuses('--krum_models=13 is more than the 12 clients, of which it chooses'):
    unused.check(krum, 12)
  unused.check(krum, 13)


def test_a_run_says_and_refuses_so_before_anything_is_written(
  parse, tmp_path, monkeypatch
):
  def stopped(*_, **__):
    raise StopIteration

  monkeypatch.setattr(experiment, 'run_one', stopped)
  said = []
  with pytest.raises(StopIteration):
    experiment.run(*parse('--init_clients=99'), tmp_path / 'a', say=said.append)
  (note,) = (each for each in said if 'Note' in each)
  assert '--init_clients=99 has no effect: all' in note
  with refuses('--krum_models=13 is more than the 12 clients'):
    experiment.run(*parse('--aggregation=krum', '--krum_models=13'), tmp_path / 'a')
  assert not list(tmp_path.iterdir())


def test_numbers_of_processes_are_not_given_twice(monkeypatch):
  monkeypatch.setattr(launch_local, 'launch', lambda *_: 0)
  for text in ('--num_processes=3', '-process_id=1', '--coordinator_address'):
    flag = text.strip('-').partition('=')[0]
    with refuses(f'--{flag} after -- has no effect: launch_local sets it'):
      launch_local.main(['launch_local', '--rounds=1', text])


def test_leaving_by_sys_exit_is_no_success(parse, capsys):
  parse()

  def leaves(argv):
    raise SystemExit(0)

  with pytest.raises(SystemExit) as ended:
    start.main_with_clear_errors(leaves)([])
  assert ended.value.code == 1
  said = capsys.readouterr().err
  assert said.endswith(
    'error: Code of your own called sys.exit(0), which ended the run; see the '
    'traceback above. Checkpoints are kept.\n'
  )
  assert 'in leaves' in said
  # A binary's own exit code is what it returns.
  assert start.main_with_clear_errors(lambda argv: 130)([]) == 130


@flagsaver.flagsaver
def test_flags_that_are_given_at_their_defaults_are_noted_too(parse):
  parse()
  flags.FLAGS(['run', *QUICK, '--momentum=0.9', '--beta=0.1'])
  config = experiment.chosen_configuration()
  said = [in_flags(n) for n in unused.notes(config, experiment_flags.machine(), 12)]
  assert [note.partition(':')[0] for note in said] == [
    '--momentum=0.9 has no effect', '--beta=0.1 has no effect'
  ]  # fmt: skip


def test_notes_on_local_steps_are_kept(tmp_path):
  given = '--algorithm=fed_prox', '--batch_size=0', f'--workdir={tmp_path}'
  made = call('run', *LOGISTIC, *given, cwd=tmp_path)
  assert made.returncode == 0, made.stderr
  (note,) = json.loads((tmp_path / 'summary.json').read_text())['notes']
  assert note.startswith('--prox_mu=0.1 has no effect: all clients take one local step')
