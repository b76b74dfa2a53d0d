"""The round loop: draw a cohort, run the compiled step, report, save."""

import contextlib
import hashlib
import itertools
import json
import math
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm
from absl import logging

from fesem_jax import (
  atomic,
  checkpoint,
  evaluate,
  machine,
  portrait,
  sharding,
  streams,
  writer,
)
from fesem_jax.base import Cohort, FederatedData
from fesem_jax.batching import num_steps
from fesem_jax.data import skew
from fesem_jax.errors import Diverged, UserError, check_at_least
from fesem_jax.local_sgd import LocalTraining
from fesem_jax.method import Algorithm, RoundInfo
from fesem_jax.programs import Programs
from fesem_jax.workdir import claim_workdir

# Clients are padded to a multiple of this and of the device count, so that
# checkpoints do not depend on the count while it divides this.
_PADDING = 8

# Eq. 6 stands still when a round changes it by no more than this share.
_SETTLED = 1e-3


class Stopped(Exception):  # noqa: N818 - not an error: the user pressed Ctrl-C.
  """The run was interrupted after a whole round and can be continued."""


class Result(NamedTuple):
  """A finished run.

  Attributes:
    state: the algorithm's final state.
    train: the training split as it was arranged for the devices; positions in
      the state are positions in it.
    summary: what `summary.json` holds.
    history: one record per round, what `metrics.jsonl` holds.
    portrait: see `portrait.draw`; empty if it was not asked for.
  """

  state: Any
  train: FederatedData
  summary: dict[str, Any]
  history: list[dict[str, Any]]
  portrait: dict[str, np.ndarray]


def arrange(
  local: LocalTraining, train: FederatedData, test: FederatedData
) -> tuple[FederatedData, FederatedData]:
  """Deals clients so that devices have like work, and puts the data on them.

  Clients without examples are added to make the devices' shares equal; they
  change nothing. Names, ids and true clusters travel with the clients.
  """
  work = num_steps(local.schedule, train.sizes(), train.max_examples)
  order = sharding.deal(
    np.asarray(work) * train.max_examples + np.asarray(train.sizes())
  )
  multiple = math.lcm(_PADDING, local.mesh.size)
  padded = -(-len(order) // multiple) * multiple
  place = lambda data: sharding.replicate(data.reorder(order, padded), local.mesh)
  return place(train), place(test)


def draw_cohort(
  seed: int, round_number: int, clients_per_round: int, train: FederatedData, mesh: Any
) -> Cohort:
  """The clients of a round, dealt so that devices have like work.

  Drawn without replacement from (seed, round) by client id, so that neither the
  clients' order nor the device count matters.

  Args:
    seed: of the run.
    round_number: counted from 1.
    clients_per_round: S; 0 or all clients is full participation.
    train: training split as arranged.
    mesh: devices the cohort is split over.
  """
  real = len(train.info.names)
  if not 0 < clients_per_round < real:
    return Cohort(np.arange(train.num_clients, dtype=np.int32), everyone=True)
  by_id = np.argsort(np.asarray(train.client_ids)[:real])
  rng = streams.host_rng(seed, streams.COHORT, round_number)
  positions = by_id[rng.choice(real, clients_per_round, replace=False)]
  padding = -clients_per_round % mesh.size
  positions = np.concatenate([positions, np.full(padding, train.num_clients)])
  sizes = np.append(np.asarray(train.sizes()), 0)[positions]
  return Cohort(positions[sharding.deal(sizes)].astype(np.int32), everyone=False)


def simulate(
  algorithm: Algorithm,
  local: LocalTraining,
  train: FederatedData,
  test: FederatedData,
  *,
  rounds: int,
  seed: int = 0,
  clients_per_round: int = 0,
  eval_every: int = 1,
  finetune_epochs: int = 1,
  patience: int = 0,
  workdir: str | pathlib.Path | None = None,
  config: dict[str, Any] | None = None,
  checkpoint_every: int = 10,
  resume: bool = True,
  tensorboard: bool = False,
  make_portrait: bool = True,
  progress: bool | None = None,
  programs: Programs | None = None,
  unseen: tuple[FederatedData, FederatedData] | None = None,
  notes: Sequence[str] = (),
) -> Result:
  """Runs an algorithm for a number of rounds.

  Args:
    algorithm: see `Algorithm`.
    local: how its clients train; the same object it was built with.
    train: training split.
    test: test split of the same clients.
    rounds: communication rounds in all, those of a continued run included.
    seed: decides everything random.
    clients_per_round: S; 0 is every client.
    eval_every: rounds between evaluations; 0 evaluates after the last only.
    finetune_epochs: local epochs before the `finetuned` figures; 0 repeats the
      `deployed` ones.
    patience: stops after this many rounds in which no client moved and Eq. 6
      changed by less than 0.1 %; 0 never stops early.
    workdir: where metrics, summary, checkpoints and the portrait go; None
      writes nothing.
    config: what identifies the run; a workdir with another one is refused. By
      default the seed and a digest of the compiled round, which holds the
      method, its options, the model and the shapes of the data.
    checkpoint_every: rounds between checkpoints; 0 saves after the last only.
    resume: whether to continue the run that the workdir holds.
    tensorboard: write scalars for TensorBoard too.
    make_portrait: describe the clients for the figures after the last round.
    progress: show a progress bar; None shows it on a terminal only.
    programs: compiled by earlier runs of the same algorithm and `local`, e.g. with
      other seeds.
    unseen: training and test split of clients that take no part, to measure on after
      the last round; see `evaluate.models_of_unseen`.
    notes: sentences about the method that the summary keeps; see `algorithms.notes`.

  Returns:
    `Result`.

  Raises:
    UserError: on a bad argument or an unusable workdir.
    Diverged: when no client of a round came back with a finite update, or when
      the training loss or Eq. 6 are not finite.
    Stopped: after Ctrl-C, once the round is done and saved.
  """
  with contextlib.ExitStack() as opened:
    began = time.perf_counter()
    programs = programs or Programs()
    _check(rounds, clients_per_round, eval_every, finetune_epochs, train, test)
    if unseen is not None:
      _check(rounds, 0, eval_every, finetune_epochs, *unseen)
    named = (streams.INIT, streams.ROUNDS, streams.FINETUNE, streams.PORTRAIT)
    keys = {s: streams.fold(jax.random.key(seed), s) for s in named}
    keys = sharding.replicate(keys, local.mesh)
    data_digest = None if workdir is None else _digest_of_data(train, test, unseen)
    train, test = arrange(local, train, test)
    cohort = draw_cohort(seed, 1, clients_per_round, train, local.mesh)
    rehearse = lambda: _rehearse(algorithm, train, cohort, keys)
    rehearsal = programs.once(('rehearsal', algorithm), rehearse, train, cohort)
    folder = None if workdir is None else pathlib.Path(workdir)
    checkpoints = None
    if folder is not None:
      writer.check_tensorboard(tensorboard)
      identity = config
      if identity is None:
        identity = {
          'seed': seed,
          'clients_per_round': clients_per_round,
          'finetune_epochs': finetune_epochs,
          'unseen': None
          if unseen is None
          else np.asarray(unseen[0].client_ids).tolist(),
          'program': _digest(rehearsal),
        }
      identity = identity | {'data_digest': data_digest}
      checkpoints = opened.enter_context(claim_workdir(folder, identity, resume))
    state, done, seconds = _begin(
      algorithm, train, keys[streams.INIT], checkpoints, rounds, programs
    )
    out = writer.MetricsWriter(folder, done, tensorboard)
    opened.callback(out.close)
    finished = done == rounds or _settled(out.records, patience)
    if folder is not None and finished:
      held = _read_result(folder, state, train, out.records, make_portrait)
      if held is not None:
        return held

    shardings = jax.tree.map(lambda x: x.sharding, state)
    compile_began = time.perf_counter()
    step = programs.compiled(
        ('step', algorithm), algorithm.step, state, train, cohort, keys[streams.ROUNDS],
        donate_argnums=0, out_shardings=(shardings, None),
    )  # fmt: skip
    seconds['compile'] += time.perf_counter() - compile_began

    def measure(state: Any, train: FederatedData, test: FederatedData, key: jax.Array):
      used = algorithm.deployed(state, train)
      measured = evaluate.evaluate_clients(
        used, local, train, test, key, finetune_epochs
      )
      return measured, used.clusters()

    def scores(after: int) -> dict[str, Any]:
      args = (state, train, test, jax.random.fold_in(keys[streams.FINETUNE], after))
      named = ('measure', algorithm, local, finetune_epochs)
      measured = programs.compiled(named, measure, *args)(*args)
      (deployed, finetuned, failed), row = jax.device_get(measured)
      return {
        'deployed': evaluate.scores(deployed)._asdict(),
        'finetuned': evaluate.scores(finetuned)._asdict(),
        'finetuning_failed': int((failed & (np.asarray(test.sizes()) > 0)).sum()),
        **_clusters(row, num_clusters, train),
      }

    shapes = lambda: jax.eval_shape(algorithm.deployed, state, train)
    used = programs.once(('deployed', algorithm), shapes, state, train)
    num_clusters = used.num_models()
    clusters: dict[str, Any] = {}
    if not done and used.clusters() is not None:
      find_row = lambda state, train: algorithm.deployed(state, train).clusters()
      args = (state, train)
      row = programs.compiled(('row', algorithm), find_row, *args)(*args)
      clusters = _clusters(jax.device_get(row), num_clusters, train)
    if clusters:
      out.write({'round': 0, **clusters, 'seconds': seconds['init']})
    steps_done, rounds_seconds = 0, []
    bar = tqdm.tqdm(
      total=rounds,
      initial=done,
      unit='round',
      disable=None if progress is None else not progress,
    )
    try:
      with _interruptible() as interrupted:
        while not finished:
          cohort = draw_cohort(seed, done + 1, clients_per_round, train, local.mesh)
          round_began = time.perf_counter()
          round_key = jax.random.fold_in(keys[streams.ROUNDS], done + 1)
          state, info = step(state, train, cohort, round_key)
          if algorithm.between is not None:
            state, info = algorithm.between(state, info)
            state = jax.device_put(state, shardings)
          info = jax.device_get(info)
          rounds_seconds.append(time.perf_counter() - round_began)
          _check_finite(done + 1, info, algorithm.train is not None, checkpoints)
          done += 1
          steps_done += int(info.steps)
          entry = _round_record(done, info, train)
          finished = done == rounds or _settled([*out.records, entry], patience)
          stop = interrupted() and not finished
          if finished or (eval_every and done % eval_every == 0):
            entry |= scores(done)
          out.write(entry | {'seconds': rounds_seconds[-1]})
          bar.set_postfix(_postfix(out.records))
          bar.update()
          due = checkpoint_every and done % checkpoint_every == 0
          if checkpoints is not None and (due or stop or finished):
            checkpoints.save(done, state)
          if stop:
            raise Stopped(_how_to_continue(done, rounds, folder))
      if 'deployed' not in out.records[-1]:  # Stopped here between evaluations.
        out.amend(scores(done))
    finally:
      bar.close()

    label_counts = skew.label_counts(train)[: len(train.info.names)]
    picture = {}
    if make_portrait:
      picture = portrait.draw(
        algorithm, local, state, train, keys[streams.PORTRAIT], programs
      )
      picture['label_counts'] = label_counts
    timing = {
      'compile_seconds': seconds['compile'],
      'seconds_per_round': float(np.median(rounds_seconds)) if rounds_seconds else None,
      'client_steps_per_second': (
        steps_done / sum(rounds_seconds) if rounds_seconds else None
      ),
      'total_seconds': time.perf_counter() - began,
    }
    summary = {
      **_identity(config or {}, seed, len(train.info.names)),
      **_outcome(out.records),
      'unseen': _unseen_scores(algorithm, local, state, train, unseen, programs),
      'clients_without_test_examples': int(
        (np.asarray(test.sizes())[: len(test.info.names)] == 0).sum()
      ),
      'label_skew': skew.label_skew(label_counts),
      'notes': list(notes),
      'timing': timing,
      **machine.describe(local.mesh),
    }
    if folder is not None:
      if picture:
        atomic.write_arrays_atomically(folder / 'clients.npz', picture)
      atomic.write_atomically(
        folder / 'summary.json', json.dumps(summary, indent=1) + '\n'
      )
    return Result(state, train, summary, out.records, picture)


def _check(
  rounds: int,
  clients_per_round: int,
  eval_every: int,
  finetune_epochs: int,
  train: FederatedData,
  test: FederatedData,
) -> None:
  """Raises `UserError` on arguments out of range."""
  check_at_least(1, rounds=rounds)
  check_at_least(
    0,
    clients_per_round=clients_per_round,
    eval_every=eval_every,
    finetune_epochs=finetune_epochs,
  )
  if clients_per_round > train.num_clients:
    raise UserError(
      f'--clients_per_round={clients_per_round} is more than the '
      f'{train.num_clients} clients.'
    )
  if not np.array_equal(train.client_ids, test.client_ids):
    raise UserError('The training and the test split must have the same clients.')
  for name in ('num_classes', 'scale', 'example_shape'):
    a, b = getattr(train, name), getattr(test, name)
    if a != b:
      raise UserError(
        f'The training split has {name} {a}, the test split {b}; they must agree.'
      )
  if len(test.y) == 0:
    raise UserError('No client has test examples; give the clients more examples.')
  empty = np.flatnonzero(np.asarray(train.sizes()) == 0)
  if len(empty):
    raise UserError(
      f'Client {train.info.names[empty[0]]} has no training examples; leave such '
      'clients out.'
    )


def _rehearse(
  algorithm: Algorithm, train: FederatedData, cohort: Cohort, keys: dict[int, Any]
) -> jax.stages.Traced:
  """Traces the start and a round before anything is written.

  A method's objections are raised here.
  """
  state = jax.eval_shape(algorithm.init, keys[streams.INIT], train)
  return jax.jit(algorithm.step).trace(state, train, cohort, keys[streams.ROUNDS])


def _digest(traced: jax.stages.Traced) -> str:
  """Differs when anything in the round's program does."""
  return hashlib.sha256(traced.lower().as_text().encode()).hexdigest()[:16]


def _digest_of_data(
  train: FederatedData,
  test: FederatedData,
  unseen: tuple[FederatedData, FederatedData] | None,
) -> str:
  """Differs when any example, label or client does."""
  digest = hashlib.sha256()
  for split in (train, test, *(unseen or ())):
    truth = split.info.clusters
    for array in (
      split.x,
      split.y,
      split.offsets,
      split.client_ids,
      np.asarray(split.info.names).astype(str),
      np.array([]) if truth is None else truth,
    ):
      array = np.ascontiguousarray(array)
      digest.update(f'{array.dtype} {array.shape}'.encode())
      digest.update(array.view(np.uint8).data)
    digest.update(f'{split.num_classes} {split.scale}'.encode())
  return digest.hexdigest()[:16]


def _begin(
  algorithm: Algorithm,
  train: FederatedData,
  key: jax.Array,
  checkpoints: checkpoint.Checkpoints | None,
  rounds: int,
  programs: Programs,
) -> tuple[Any, int, dict[str, float]]:
  """The state to start from, the rounds it has behind it, and seconds spent."""
  began = time.perf_counter()
  init = programs.compiled(('init', algorithm), algorithm.init, key, train)
  seconds = {'compile': time.perf_counter() - began, 'init': 0.0}
  latest = None if checkpoints is None else checkpoints.latest_round()
  if checkpoints is None or latest is None:
    began = time.perf_counter()
    state = jax.block_until_ready(init(key, train))
    seconds['init'] = time.perf_counter() - began
    return state, 0, seconds
  if latest > rounds:
    raise UserError(
      f'The workdir holds {latest} rounds, more than --rounds={rounds}; choose '
      'another folder or more rounds.'
    )
  shapes = jax.eval_shape(algorithm.init, key, train)
  like = jax.tree.map(
    lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
    shapes,
    init.output_shardings,
  )
  return *checkpoints.restore(like), seconds


def _read_result(
  folder: pathlib.Path,
  state: Any,
  train: FederatedData,
  records: list[dict[str, Any]],
  make_portrait: bool,
) -> Result | None:
  """The result that the workdir holds; None if it is to be made from the state."""
  try:
    summary, picture = writer.read_summary(folder), writer.read_clients(folder)
  except UserError:
    pass
  else:
    if summary is None or (make_portrait and not picture):
      return None
    if summary.get('rounds') != records[-1]['round'] or 'deployed' not in records[-1]:
      return None
    if _is_sound(summary, records):
      return Result(state, train, summary, records, picture)
  logging.warning(
    'summary.json or clients.npz in %s is damaged; both are made anew from the '
    'checkpoint.',
    folder,
  )
  return None


def _is_sound(summary: dict[str, Any], records: list[dict[str, Any]]) -> bool:
  """Whether a summary is one, and says what the records say."""
  text = lambda held: json.dumps(held, sort_keys=True)
  timing = summary.get('timing')
  return (
    text(summary | _outcome(records)) == text(summary)
    and {'unseen', 'label_skew', 'clients_without_test_examples'} <= summary.keys()
    and isinstance(timing, dict)
    and {'compile_seconds', 'seconds_per_round', 'client_steps_per_second'}
    <= timing.keys()
  )


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
  """Turns the first Ctrl-C into a request; a second one acts at once."""
  requested = False

  def request(signum: int, frame: Any) -> None:
    nonlocal requested
    del signum, frame
    requested = True
    signal.signal(signal.SIGINT, before)
    print('\nFinishing this round, then saving ...', file=sys.stderr)

  if threading.current_thread() is not threading.main_thread():
    yield lambda: False
    return
  before = signal.signal(signal.SIGINT, request)
  try:
    yield lambda: requested
  finally:
    signal.signal(signal.SIGINT, before)


def _clusters(
  row: np.ndarray | None, num_clusters: int, train: FederatedData
) -> dict[str, Any]:
  """Sizes of the clusters that clients deploy from, if any, and their agreement.

  Args:
    row: see `Deployed`.
    num_clusters: K.
    train: training split as arranged.
  """
  if row is None:
    return {}
  assignment = np.asarray(row)[: len(train.info.names)]
  sizes = np.bincount(assignment, minlength=num_clusters)
  agreement = evaluate.agreement(train.info.clusters, assignment)
  return {'cluster_sizes': sizes.tolist(), **agreement}


def _round_record(done: int, info: RoundInfo, train: FederatedData) -> dict[str, Any]:
  """What metrics.jsonl says of a round, without scores and time."""
  someone = info.trained > 0  # Otherwise there is no loss and no Eq. 6.
  entry: dict[str, Any] = {
    'round': done,
    'train_loss': float(info.train_loss) if someone else None,
    'trained': int(info.trained),
    'failed': int(info.failed),
  }
  if info.clusters is not None:
    assignment = np.asarray(info.clusters.assignment)[: len(train.info.names)]
    entry |= {
      'cluster_sizes': info.clusters.sizes.tolist(),
      'moved': int(info.clusters.moved),
      'objective': float(info.clusters.objective) if someone else None,
      **evaluate.agreement(train.info.clusters, assignment),
    }
  return entry


def _settled(records: list[dict[str, Any]], patience: int) -> bool:
  """Whether clusters and Eq. 6 stood still for the last `patience` rounds."""
  if not patience or len(records) <= patience or 'moved' not in records[-1]:
    return False
  recent = records[-patience:]
  known = [r for r in records[-patience - 1 :] if r.get('objective') is not None]
  values = [r['objective'] for r in known]
  still = all(abs(b - a) <= _SETTLED * abs(a) for a, b in itertools.pairwise(values))
  return len(values) > patience and still and not any(r['moved'] for r in recent)


def _check_finite(
  round_number: int,
  info: RoundInfo,
  penalized: bool,
  checkpoints: checkpoint.Checkpoints | None,
) -> None:
  """Raises `Diverged` if nothing sound is left of a round."""
  distance = 0.0 if info.clusters is None else float(info.clusters.objective)
  if info.trained == 0 and info.failed:
    what = 'no client came back with a finite update'
  elif not np.isfinite(info.train_loss):
    what = 'the training loss is not finite'
  elif not np.isfinite(distance):
    what = 'clients are too far from their centers for float32'
  else:
    return
  saved = None if checkpoints is None else checkpoints.latest_round()
  kept = '' if saved is None else f' The checkpoint of round {saved} is kept.'
  lower = '--learning_rate'
  if penalized:
    lower += ', or the penalty (--prox_lambda, --prox_mu)'
  raise Diverged(f'Round {round_number}: {what}; lower {lower}.{kept}')


def _unseen_scores(
  algorithm: Algorithm,
  local: LocalTraining,
  state: Any,
  seen: FederatedData,
  unseen: tuple[FederatedData, FederatedData] | None,
  programs: Programs,
) -> dict[str, Any] | None:
  """Scores of clients that took no part; None where models are not for others."""
  used = jax.eval_shape(algorithm.deployed, state, seen)
  if unseen is None or used.own is not None:
    return None

  def measure(
    state: Any, seen: FederatedData, train: FederatedData, test: FederatedData
  ) -> evaluate.Counts:
    used = algorithm.deployed(state, seen)
    used = evaluate.models_of_unseen(used, seen.sizes() > 0, local, train)
    key = jax.random.key(0)  # Nothing is fine-tuned.
    return evaluate.evaluate_clients(used, local, train, test, key, 0)[0]

  args = (state, seen, *arrange(local, *unseen))
  counts = programs.compiled(('unseen', algorithm, local), measure, *args)(*args)
  return evaluate.scores(jax.device_get(counts))._asdict()


def _how_to_continue(done: int, rounds: int, folder: pathlib.Path | None) -> str:
  if folder is None:
    return f'Stopped after round {done} of {rounds}; nothing was saved (no workdir).'
  return (
    f'Stopped after round {done} of {rounds}; saved in {folder}. Run the same '
    'command again to continue.'
  )


def _postfix(records: list[dict[str, Any]]) -> dict[str, str]:
  """What the progress bar shows: loss, accuracy, clusters."""
  shown = {}
  if records[-1].get('train_loss') is not None:
    shown['loss'] = f'{records[-1]["train_loss"]:.3f}'
  measured = [r for r in records if 'finetuned' in r]
  if measured:
    shown['accuracy'] = f'{100 * measured[-1]["finetuned"]["micro_accuracy"]:.1f}%'
  if 'cluster_sizes' in records[-1]:
    shown['clusters'] = '/'.join(map(str, records[-1]['cluster_sizes']))
  return shown


def _identity(config: dict[str, Any], seed: int, num_clients: int) -> dict[str, Any]:
  named = {n: config.get(n) for n in ('algorithm', 'dataset', 'partition')}
  return named | {'num_clients': num_clients, 'seed': seed}


def _outcome(records: list[dict[str, Any]]) -> dict[str, Any]:
  """Final scores and clusters."""
  last = records[-1]
  clusters = None
  if 'moved' in last:
    moves = [r['round'] for r in records if r.get('moved')]
    clusters = {
      'sizes': last['cluster_sizes'],
      'ari': last['ari'],
      'nmi': last['nmi'],
      'objective': last['objective'],
      # The last round in which a client changed its cluster.
      'rounds_to_stable': moves[-1] if moves else 0,
    }
  return {
    'rounds': last['round'],
    'num_clusters': len(clusters['sizes']) if clusters else None,
    'deployed': last['deployed'],
    'finetuned': last['finetuned'],
    'finetuning_failed': last['finetuning_failed'],
    'clusters': clusters,
  }
