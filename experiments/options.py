"""Options of the binaries: fields of a few classes, with types, bounds and words."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from absl import flags

from fesem_jax import models, partitions, tasks
from fesem_jax.core.local_training import (
  BatchStats,
  DataPlacement,
  Precision,
  SharedStart,
)
from fesem_jax.data import attacks, expressions, sources
from fesem_jax.evaluation import curves
from fesem_jax.models import initializers
from fesem_jax.run.callbacks import loggers
from fesem_jax.training import compression, device_profiles, optimizers, privacy
from fesem_jax.utils import ranges
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.ranges import (
  Count,
  Fraction,
  Index,
  NotNegative,
  Positive,
  Range,
  Share,
)


class OneOf(NamedTuple):
  choices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Kinds:
  """Names in an option, or functions by their names, and parameters to hide."""

  kinds: Any
  hidden: tuple[str, ...] = ()


Names = tuple[str, ...]
REPEATED = 'repeated'  # Marks a flag that may stand several times.


@dataclasses.dataclass(frozen=True)
class Data:
  """Data sets, their task, how clients get them, and drift.

  Attributes:
    dataset: Data set, or MODULE:FUNCTION(OPTION=VALUE), which returns a Pool.
    task: What models predict; empty: the task of the data set.
    standardize: Scale columns to mean 0 and deviation 1 over training examples.
    seed: Seed of all random numbers.
    partition: How clients get examples; empty: natural, cluster or iid.
    num_clients: Clients M; 0: all natural clients, or 100.
    examples_per_client: Training examples of a client, at most or on average; 0: all.
    test_rows: Which fifth of a client is for testing, without a test split.
    drift_rounds: Rounds, from 2, at which each client draws a random new group.
    drift_start: Groups before drift_rounds: of the partition, or one for all.
  """

  dataset: Annotated[str, Kinds(sources.SOURCES, ('request',))] = 'digits'
  task: Annotated[str, OneOf(('', *tasks.TASKS))] = ''
  standardize: bool = False
  seed: Annotated[int, Range(0, below=2**31)] = 0
  partition: Annotated[str, Kinds(partitions.KINDS, ('within',))] = ''
  num_clients: Index = 0
  examples_per_client: Index = 0
  test_rows: Annotated[str, OneOf(('random', 'last'))] = 'random'
  drift_rounds: tuple[int, ...] = ()
  drift_start: Annotated[str, OneOf(('groups', 'one'))] = 'groups'


@dataclasses.dataclass(frozen=True)
class Model:
  """The model, what it starts from, and which layers train.

  Attributes:
    model: Model of clients, or MODULE:FUNCTION.
    hidden: Widths of the hidden layers of mlp.
    initializer: Initialization as in Flax or PyTorch.
    init_from: Initial weights: the workdir of a run, RUN:K, or a file.
    init_layers: Layers taken from --init_from, as patterns; default: all.
    train_layers: Layers that train, as patterns; the others stay; default: all.
  """

  model: Annotated[str, Kinds(models.NAMES)] = 'mlp'
  hidden: tuple[int, ...] = (64,)
  initializer: Annotated[str, OneOf(tuple(initializers.INITIALIZERS))] = 'flax'
  init_from: str = ''
  init_layers: Names = ()
  train_layers: Names = ()


@dataclasses.dataclass(frozen=True)
class Training:
  """Local training, and what clients send.

  Attributes:
    optimizer: Local optimizer.
    learning_rate: Local learning rate.
    momentum: Momentum of --optimizer=momentum.
    weight_decay: Multiple of the parameters added to gradients.
    clip_norm: L2 norm to which gradients are clipped; 0: none.
    lr_schedule: constant, cosine[:ROUNDS], exponential:RATE or step:EVERY:FACTOR.
    batch_size: Examples of a local step; 0: all of the client.
    local_epochs: Local epochs of a round.
    local_steps: Local steps of a round, instead of --local_epochs; 0: epochs.
    augment: crop:PADDING or flip, or both, separated by a comma.
    batch_stats: BatchNorm statistics: averaged, or local to each client.
    keep_optimizer_state: Keep the state of local optimizers between rounds.
    precision: Precision of float32 products on accelerators.
    dp: Who adds noise for differential privacy; empty: no noise.
    dp_clip: L2 norm to which a client's change is clipped.
    dp_noise_multiplier: Deviation of the noise in units of --dp_clip.
    dp_delta: Delta of (epsilon, delta); 0: no epsilon.
    compress: Compression of what clients send.
  """

  optimizer: Annotated[str, OneOf(optimizers.NAMES)] = 'sgd'
  learning_rate: Positive = 0.1
  momentum: Share = 0.9
  weight_decay: NotNegative = 0.0
  clip_norm: NotNegative = 0.0
  lr_schedule: str = 'constant'
  batch_size: Index = 10
  local_epochs: Count = 2
  local_steps: Index = 0
  augment: str = ''
  batch_stats: BatchStats = 'average'
  keep_optimizer_state: bool = False
  precision: Precision = 'highest'
  dp: Annotated[str, OneOf(('', *privacy.WHERE))] = ''
  dp_clip: NotNegative = 0.0
  dp_noise_multiplier: NotNegative = 0.0
  dp_delta: Share = 1e-5
  compress: Annotated[str, Kinds(compression.KINDS)] = ''


@dataclasses.dataclass(frozen=True)
class Run:
  """Rounds, clients of a round, bad clients, stopping, evaluation.

  Attributes:
    rounds: Communication rounds.
    clients_per_round: Clients of a round; below 1: a share of all; 0: all.
    select: uniform, power_of_choice:CANDIDATES or trace:FILE.
    dropout_rate: Probability that the update of a client never arrives.
    attack: What bad clients do.
    attack_fraction: Fraction of clients that are bad.
    patience: Stop after this many rounds without moves of clients; 0: never.
    stop_after: Stop after this many evaluations without a gain; 0: never.
    device_profile: Devices of clients, for simulated seconds; empty: none.
    finetune_epochs: Local epochs before fine-tuned models are evaluated.
    eval_every: Rounds between evaluations; 0: after the last round only.
    eval_start: Also evaluate the start, as round 0.
    evaluate_on: Test examples, or a fifth of the training examples.
    unseen_fraction: Fraction of clients that join after the last round.
  """

  rounds: Count = 20
  clients_per_round: Annotated[int | float, Range(0)] = 0
  select: str = 'uniform'
  dropout_rate: Share = 0.0
  attack: Annotated[str, Kinds(attacks.KINDS)] = ''
  attack_fraction: Fraction = 0.0
  patience: Index = 0
  stop_after: Index = 0
  device_profile: Annotated[str, OneOf(('', *device_profiles.PROFILES))] = ''
  finetune_epochs: Index = 1
  eval_every: Index = 1
  eval_start: bool = False
  evaluate_on: Annotated[str, OneOf(('test', 'validation'))] = 'test'
  unseen_fraction: Fraction = 0.0


@dataclasses.dataclass(frozen=True)
class Output:
  """Records, reports, logs and files.

  Attributes:
    report: Round of the table: the last, the best, or the mean of the last ten.
    target: Accuracies (RMSE): tables have the rounds until each is reached.
    checkpoint_every: Rounds between checkpoints; 0: after the last round only.
    resume: Resume the run in --workdir.
    save_models: Save the deployed models; default: up to 1 GiB.
    log_to: Loggers of metrics, separated by commas.
    callbacks: MODULE:FUNCTION,...: functions that return callbacks of every run.
    ignore_checks: Ids of checks to skip, e.g. FJ101,FJ402.
    report_html: Write WORKDIR/report.html; default of fesem-run: false.
    quiet: Print only the outcome, warnings and errors.
    verbose: Print a line for each run of a comparison, and all warnings.
  """

  report: Annotated[str, OneOf(tuple(curves.REPORTS))] = 'last'
  target: Names = ()
  checkpoint_every: Index = 10
  resume: bool = True
  save_models: bool | None = None
  log_to: Annotated[Names, Kinds(tuple(loggers.LOGGERS))] = ()
  callbacks: Names = ()
  ignore_checks: Names = ()
  report_html: bool = True
  quiet: bool = False
  verbose: bool = False


@dataclasses.dataclass(frozen=True)
class Machine:
  """Speed and memory: location of data, use of devices.

  Attributes:
    data_dir: Folder of the data; default: FESEM_DATA_DIR, else ./data.
    clients_per_chunk: Clients vmapped per device; 0: automatic.
    shared_start: Share dense kernels of clients with the same start.
    runs_at_once: Runs of fesem-compare side by side; 0: automatic; 1: one by one.
    num_devices: Devices of all processes; 0: all, on CPU one per core.
    identical: The same bits on 1, 2 and 4 devices.
    data_placement: Examples on every device, or those of a client on its device.
  """

  data_dir: str = ''
  clients_per_chunk: Index = 0
  shared_start: SharedStart = 'auto'
  runs_at_once: Annotated[int, Range(0, 1024)] = 0
  num_devices: Annotated[int, Range(0, 1024)] = 0
  identical: bool = False
  data_placement: DataPlacement = 'auto'


@dataclasses.dataclass(frozen=True)
class Processes:
  """One run of several processes.

  Attributes:
    coordinator_address: HOST:PORT of process 0; auto: as JAX finds it; empty: alone.
    process_id: Number of this process; -1: as --coordinator_address=auto finds it.
    num_processes: Number of processes; 0: as --coordinator_address=auto finds it.
  """

  coordinator_address: str = ''
  process_id: Annotated[int, Range(-1, 2**20)] = -1
  num_processes: Annotated[int, Range(0, 2**20)] = 0


@functools.cache
def documented(function: Callable[..., Any]) -> dict[str, str]:
  """Arguments or fields by name -> their entries in a docstring."""
  text = inspect.getdoc(function) or ''
  section = re.search(r'^(?:Args|Attributes):\n((?: +.*\n?|\n)*)', text, re.M)
  entries = re.findall(
    r'^  \**(\w+): (.*(?:\n    .*)*)', section[1] if section else '', re.M
  )
  return {name: ' '.join(entry.split()) for name, entry in entries}


class Option(NamedTuple):
  name: str
  hint: Any
  default: Any
  words: str

  @property
  def help(self) -> str:
    """Its words, and a line for each kind of its expression."""
    kinds = next((x for x in get_args(self.hint) if isinstance(x, Kinds)), Kinds(()))
    if isinstance(kinds.kinds, tuple):
      return f'{self.words} {", ".join(kinds.kinds)}'.strip()
    lines = [self.words]
    for name, kind in kinds.kinds.items():
      parameters = inspect.signature(kind).parameters.values()
      arguments = [
        p.name if p.default is p.empty else f'{p.name}={expressions.write(p.default)}'
        for p in parameters
        if p.name not in kinds.hidden
      ]
      about, *_ = (inspect.getdoc(kind) or '').split('\n\n')
      lines.append(f'{name}({", ".join(arguments)}): {" ".join(about.split())}')
    return '\n'.join(lines)

  def parse(self, text: str) -> Any:
    return Parser(self.name, self.hint).parse(text)


def fields(cls: Any) -> list[Option]:
  words = documented(cls)
  return [
    Option(f.name, f.type, f.default, words[f.name]) for f in dataclasses.fields(cls)
  ]


class Parser(flags.ArgumentParser):  # type: ignore[misc]
  """Values of an option, of the type and within the bounds of its annotation."""

  def __init__(self, name: str, hint: Any):
    super().__init__()
    self.name, self.hint = name, hint

  def parse(self, argument: Any) -> Any:
    """The value of a text; raises `UserError`. Other values stay as they are."""
    try:
      value = _converted(argument, self.hint)
    except (KeyError, ValueError) as e:
      raise UserError(f'{self.name}: invalid value {argument!r:.40}') from e
    ranges.check_argument(self.name, value, self.hint)
    if texts := choices(self.hint):
      ranges.check_choice(self.name, value, texts)
    return value


def choices(hint: Any) -> tuple[str, ...]:
  if get_origin(hint) is Literal:
    return get_args(hint)
  return next((x.choices for x in get_args(hint) if isinstance(x, OneOf)), ())


def _converted(text: Any, hint: Any) -> Any:
  """A value of the type of an annotation, from its text."""
  kinds = get_args(hint)
  if hasattr(hint, '__metadata__'):
    return _converted(text, kinds[0])
  if not isinstance(text, str) or get_origin(hint) is Literal:
    return text
  if tuple in (hint, get_origin(hint)):
    parts = filter(None, expressions.split(text))
    return [_converted(part, kinds[0] if kinds else str) for part in parts]
  if kinds == (int, float):
    return _converted(text, int if re.fullmatch(r'[-+]?\d+|all', text) else float)
  if hint is bool:
    return {'true': True, '1': True, 'false': False, '0': False}[text.lower()]
  return 0 if text == 'all' and hint is int else hint(text)


def parser(name: str, default: Any) -> Parser:
  kinds = {list: tuple, type(None): float}
  return Parser(name, kinds.get(type(default), type(default)))


# What determines the results of a run, and is in its config.json.
CONFIGURATION = Data, Model, Training, Run
TOPICS = {c.__name__.lower(): c for c in (*CONFIGURATION, Output, Machine, Processes)}
OPTIONS = {option.name: option for c in TOPICS.values() for option in fields(c)}
