"""Flags of a run: rounds, evaluation, output, devices, processes."""

from typing import get_args

from fesem_jax.core import device_profiles, local_training
from fesem_jax.data import attacks
from fesem_jax.run.callbacks import loggers
from fesem_jax.run.results import curves
from fesem_jax.utils import expressions, processes

from .entry import CountOrShare, flag

RUN = (
  flag('integer', 'rounds', 20, 'Number of communication rounds.'),
  flag('number', 'clients_per_round', 0,
    'Clients drawn for each round; below 1: a share of all; 0: all.',
    parser=CountOrShare(lower_bound=0)),
  flag('string', 'select', 'uniform',
    'Which clients take part in a round. uniform: a draw of --clients_per_round. '
    'power_of_choice:D: of D candidates, drawn by their numbers of examples, those '
    'with the largest losses. trace:FILE: those that are available, by a CSV file with '
    'the columns client, from and to, in rounds.'),
  flag('float', 'dropout_rate', 0.0,
    'Probability that a client of a round drops out, so its update never arrives.'),
  flag('string', 'attack', '',
    "What bad clients do, such as 'backdoor(0)+replacement(10)'. "
    + f'\n{expressions.help_text(attacks.KINDS)}'),
  flag('float', 'attack_fraction', 0.0,
    'Fraction of the clients that are bad, drawn once from --seed; honest clients '
    'are also evaluated separately.', lower_bound=0.0, upper_bound=1.0),
  flag('integer', 'patience', 0,
    'Stop after this many rounds in which no client changes its center and Eq. 6 '
    'changes by at most 0.1 %; 0: never.', lower_bound=0),
  flag('integer', 'stop_after', 0,
    'Stop after this many evaluations in a row without a gain on validation examples, '
    "a fifth of each client's training examples, which are held out. The models of the "
    'best round are saved as models_best.npz, and summary.json names it as best_round. '
    '0: never, and nothing is held out.', lower_bound=0),
  flag('enum', 'device_profile', '',
    "Clients' devices and network, for the simulated seconds of each round, which "
    'takes as long as its slowest client; empty: none. '
    + ' '.join(
      f'{name}: {own.download / 1e6:g} MB/s down, {own.upload / 1e6:g} MB/s up, '
      f'{own.compute / 1e9:g} GFLOP/s, {own.overhead:g} s a round.'
      for name, own in device_profiles.PROFILES.items()
    ),
    enum_values=('', *device_profiles.PROFILES)),
)  # fmt: skip

EVALUATION = (
  flag('integer', 'finetune_epochs', 1,
    'Local epochs of fine-tuning, with --optimizer and without a penalty, before '
    'evaluation of the finetuned models.'),
  flag('integer', 'eval_every', 1,
    'Rounds between evaluations; 0: after the last round only.'),
  flag('enum', 'evaluate_on', 'test',
    "validation: holds out a fifth of each client's training examples and evaluates "
    'on them; the test split is not used.', enum_values=('test', 'validation')),
  flag('float', 'unseen_fraction', 0.0,
    'Fraction of the clients that do not take part in training; after the last '
    'round each of them is evaluated with the center that has the lowest loss on '
    'its training examples, or that the rule of flux, fed_group or stocfl chooses (not '
    'for methods with personal models or layers).',
    lower_bound=0.0, upper_bound=1.0),
)  # fmt: skip

OUTPUT = (
  flag('enum', 'report', 'last',
    'Round that tables show: the last one, the best evaluated one, or the mean of '
    'the last ten evaluated rounds. summary.json contains all of them.',
    enum_values=tuple(curves.REPORTS)),
  flag('list', 'target', [],
    'Micro accuracies such as 0.97,0.99 (of a regression: RMSE). summary.json and '
    'tables report the rounds until the best value so far, interpolated linearly '
    'between evaluated rounds, reaches each target.'),
  flag('integer', 'client_metrics_every', 0,
    'Record every client in rounds that this divides, in WORKDIR/history.parquet '
    '(by pyarrow): its cluster, loss, figures where they are measured, steps, and '
    'whether it took part or failed. The report then shows who moved between clusters. '
    '0: never.', lower_bound=0),
  flag('integer', 'checkpoint_every', 10,
    'Rounds between checkpoints; 0: after the last round only.', lower_bound=0),
  flag('bool', 'resume', True,
    'Resume the run in --workdir.'),
  flag('bool', 'save_models', None,
    'Save the deployed models for fesem_jax.load_run: all centers, or '
    "every client's model. Default: if they take at most 1 GiB."),
  flag('list', 'log_to', [],
    'Loggers of the metrics of each round besides WORKDIR/metrics.jsonl, of '
    f'{", ".join(loggers.LOGGERS)}, separated by commas: WORKDIR/tensorboard/; '
    'WORKDIR/wandb/, offline unless WANDB_MODE is set; WORKDIR/mlflow.db unless '
    'MLFLOW_TRACKING_URI is set.'),
  flag('list', 'callbacks', [],
    'MODULE:FUNCTION,...: functions of your own without arguments, each of which '
    'returns a fesem_jax.Callback, or a list of them, for every run.'),
  flag('list', 'ignore_checks', [],
    'Ids of checks that say nothing, e.g. FJ101,FJ402.'),
  flag('bool', 'quiet', False,
    'Print only the outcome, warnings and errors.'),
)  # fmt: skip

MACHINE = (
  flag('integer', 'clients_per_chunk', 0,
    'Clients vmapped per device (0: automatic); changes results by rounding errors.',
    lower_bound=0),
  flag('enum', 'shared_start', 'auto',
    'Whether clients of a center, which start from the same weights, share its '
    'dense kernels and store only their changes: faster for large kernels and few '
    'local steps, which auto detects; with plain SGD only. Results change by '
    'rounding errors only.', enum_values=get_args(local_training.SharedStart)),
  flag('integer', 'runs_at_once', 0,
    'Of fesem-compare: the most runs that train side by side as one '
    'program, which differ in seeds, data or hyperparameters; 0: as many '
    'as are faster and fit into a quarter of the memory; 1: one after the other. '
    'Results change by rounding errors only; with 1, they are those of fesem-run to '
    'the bit.', lower_bound=0, upper_bound=1024),
  flag('integer', 'num_devices', 0,
    'Devices that clients are split over, those of all processes together; 0: all, on '
    'CPU one per core. Changes results by rounding alone; see --data_placement.',
    upper_bound=1024),
  flag('enum', 'data_placement', 'auto',
    'Where the examples lie. replicated: all on every device. sharded: those of a '
    "client on its device only, which takes less memory; then a round's clients "
    '(--clients_per_round) and samples of clients are drawn equally from all devices, '
    'so the drawn clients depend on the number of devices, unless it divides 8. auto: '
    'sharded on accelerators of which the examples would take more than an eighth of '
    'the memory, or more than half with --clients_per_round; else replicated.',
    enum_values=get_args(local_training.DataPlacement)),
)  # fmt: skip

PROCESSES = (
  flag('string', 'coordinator_address', '',
    'HOST:PORT where process 0 waits for the others, which together run as one; each '
    'is given the same command with its own --process_id. auto: JAX finds the '
    'processes and their numbers by itself (TPU pods, Slurm, Open MPI). Empty: a '
    'single process. '
    'Results depend on the number of processes by rounding only. Process 0 writes and '
    'prints; '
    '--workdir is a folder that all processes share. A missing process is '
    f'reported after {processes.MEETING_SECONDS} s; if one dies, the others end '
    f'after about {processes.HEARTBEAT_SECONDS} s; the same command then resumes from '
    'the last checkpoint. On one machine, --local starts all.'),
  flag('integer', 'process_id', -1,
    'Number of this process, from 0; -1: detected by --coordinator_address=auto.',
    lower_bound=-1, upper_bound=2**20),
  flag('integer', 'num_processes', 0,
    'Number of processes of the run; 0: detected by --coordinator_address=auto.',
    lower_bound=0, upper_bound=2**20),
  flag('bool', 'local', False,
    'Start all --num_processes on this machine, each with its share of the cores.'),
)  # fmt: skip
