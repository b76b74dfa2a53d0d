"""A run of an algorithm, from its arguments to its result."""

import contextlib
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tqdm

from fesem_jax.cohorts import placement
from fesem_jax.cohorts.arrangement import (
  arrange,
  draw_cohort,
  held_here,
  order_of_clients,
)
from fesem_jax.core import prng_streams
from fesem_jax.core.algorithm import Algorithm, RoundInfo
from fesem_jax.core.local_training import LocalTraining
from fesem_jax.core.types import Cohort, FederatedData
from fesem_jax.data import label_skew
from fesem_jax.evaluation import evaluate
from fesem_jax.models.model_checks import check_model
from fesem_jax.results import client_table, metrics_file, records
from fesem_jax.results.client_table import ClientTable
from fesem_jax.results.result import Result
from fesem_jax.results.result_files import read_clients, read_result, write_result
from fesem_jax.run import checkpoint, figure_data
from fesem_jax.run.evaluation import DerivedClusters, Evaluation, Measured
from fesem_jax.run.programs import CompileTime, Program, Programs, wait_for
from fesem_jax.run.programs import shared as shared_programs
from fesem_jax.run.resume import begin, default_config, digest_of_data
from fesem_jax.run.rounds import (
  compile_start,
  compile_step,
  keys_of_run,
  rehearse,
  run_round,
)
from fesem_jax.run.workdir import claim_workdir
from fesem_jax.utils import processes, progress_lines
from fesem_jax.utils.errors import Diverged, UserError, argument, check_at_least
from fesem_jax.utils.interrupts import Stopped, interruptible


def simulate(
  algorithm: Algorithm,
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
  save_models: bool | None = None,
  progress: bool | None = None,
  programs: Programs | None = None,
  unseen: tuple[FederatedData, FederatedData] | None = None,
  notes: Sequence[str] = (),
  data_placement: str = 'auto',
) -> Result:
  """Runs an algorithm for a number of rounds.

  Several processes (`processes.initialize`) call it alike, on the same data and with a
  workdir that they share; the first one writes and shows the progress.

  Args:
    algorithm: see `Algorithm`; its `local` is how clients train.
    train: training split.
    test: test split of the same clients.
    rounds: communication rounds in all, those of a continued run included.
    seed: decides everything random.
    clients_per_round: S; 0 is every client.
    eval_every: rounds between evaluations; 0 evaluates after the last only.
    finetune_epochs: local epochs before the `finetuned` figures; 0 repeats the
      `deployed` ones.
    patience: stops after this many rounds in which no client moved and Eq. 6, if the
      method measures it, changed by less than 0.1 %; 0 never stops early.
    workdir: where metrics, summary, checkpoints and the portrait go; None
      writes nothing.
    config: what identifies the run; a workdir with another one is refused. By
      default the seed and a digest of the compiled round, which holds the
      method, its options, the model and the shapes of the data.
    checkpoint_every: rounds between checkpoints; 0 saves after the last only.
    resume: whether to continue the run that the workdir holds.
    tensorboard: write scalars for TensorBoard too.
    make_portrait: describe the clients for the figures after the last round.
    save_models: whether the workdir gets the deployed models for `load_run`: all
      centers, or M models of P numbers where every client has its own. None saves up
      to 1 GiB.
    progress: show a progress bar, and what is waited for; None shows them on a
      terminal only.
    programs: compiled by earlier runs of the same algorithm, e.g. with other seeds;
      by default those of this process, so that a second run of an algorithm on data of
      the same shapes compiles nothing. `programs.Programs()` keeps a run apart.
    unseen: training and test split of clients that take no part, to measure on after
      the last round; see `evaluate.models_of_unseen`.
    notes: sentences about the method that the summary keeps; see `algorithms.notes`.
    data_placement: 'replicated' puts all examples on every device; 'sharded' splits
      them by client, and then rounds of some clients draw of each device alike, so that
      their clients depend on the number of devices, unless it divides 8; 'auto' splits
      data that are large for the devices, see `placement.chosen`.

  Returns:
    `Result`.

  Raises:
    UserError: on a bad argument, a model that does not fit the data or an unusable
      workdir.
    Diverged: when no client of a round came back with a finite update, or when
      the training loss or Eq. 6 are not finite.
    Stopped: after Ctrl-C, once the round is done and saved.
  """
  began, local = time.perf_counter(), algorithm.local
  progress = progress if processes.is_first() else False
  programs = programs or shared_programs()
  folder = None if workdir is None else pathlib.Path(workdir)
  check(rounds, clients_per_round, eval_every, finetune_epochs, train, test)
  of_data = train.example_shape, train.num_classes
  programs.once(
    ('model', local.model, of_data), lambda: check_model(local.model, *of_data)
  )
  evaluate.check_metrics(local.model)
  if unseen is not None:
    check(rounds, 0, eval_every, finetune_epochs, *unseen)

  with contextlib.ExitStack() as opened:
    opened.enter_context(progress_lines.shown(progress))
    compiling = opened.enter_context(CompileTime())
    keys = keys_of_run(seed, local.mesh)
    places = np.argsort(order_of_clients(local, train))
    label_counts = label_skew.label_counts(train)
    data_placement = placement.chosen(
      data_placement,
      placement.bytes_of(train, test),
      local.mesh,
      everyone=not 0 < clients_per_round < train.num_clients,
    )
    data_digest = ''
    if folder is not None:
      data_digest = _digest(local, data_placement, (train, test), unseen)
    on_host = train
    train, test = arrange(local, train, test, data_placement)
    if data_placement == 'sharded':
      notes = [*notes, placement.note(local.mesh, train, test)]

    def draw(number: int) -> Cohort:
      return draw_cohort(seed, number, clients_per_round, train, local.mesh)

    cohort = draw(1)
    init_key, round_key = keys[prng_streams.INIT], keys[prng_streams.ROUNDS]
    # A method's objections are raised here, before anything is written.
    like, traced = programs.once(
      ('rehearsal', algorithm),
      lambda: rehearse(algorithm, train, cohort, init_key, round_key),
      train,
      cohort,
    )

    checkpoints = None
    if folder is not None:
      metrics_file.check_tensorboard(tensorboard)
      identity = config
      if identity is None:
        identity = default_config(
          seed, clients_per_round, finetune_epochs, unseen, traced
        )
      identity = identity | {'data_digest': data_digest}
      identity |= placement.identity(train, local.mesh)
      processes.check_same('its configuration or data', identity)
      checkpoints = opened.enter_context(claim_workdir(folder, identity, resume))
    evaluation = Evaluation(
      algorithm,
      train,
      test,
      finetune_epochs,
      keys[prng_streams.FINETUNE],
      programs,
      like,
    )
    first_cohort = cohort

    def round_and_evaluation() -> tuple[Program, Program]:
      step = compile_step(
        programs, algorithm, like, train, first_cohort, round_key, wait=False
      )
      return step, evaluation.compile(wait=False)

    def start() -> Program:
      init = compile_start(programs, algorithm, like, train, init_key, wait=False)
      wait_for(init, *round_and_evaluation())
      return init

    state, done, init_seconds = begin(start, init_key, train, like, checkpoints, rounds)
    out = metrics_file.MetricsWriter(folder, done, tensorboard)
    opened.callback(out.close)

    def result(
      summary: records.Record, picture: dict[str, np.ndarray], clients: ClientTable
    ) -> Result:
      made = Result(
        clients,
        summary | {'clients_digest': client_table.digest(clients)},
        out.records,
        picture,
        local.model,
        state,
        train,
        places,
        lambda: evaluation.models(state),
      )
      if folder is not None:
        write_result(folder, made, save_models)
      return made

    finished = done == rounds or records.settled(out.records, patience)
    if folder is not None and finished:
      held = read_result(folder, out.records, make_portrait)
      if held is not None:
        clients = read_clients(folder, held[0]) or evaluation.clients(
          evaluation.measure(state, done), places
        )
        return result(*held, clients)

    step, _ = wait_for(*round_and_evaluation())
    clusters = {} if done else evaluation.clusters(state)
    if clusters:
      out.write({'round': 0, **clusters, 'seconds': init_seconds})

    derived = DerivedClusters(evaluation, traced.out_info[1], state)
    steps, rounds_seconds = 0, []
    measured: Measured | None = None
    with _bar(rounds, done, progress) as bar, interruptible() as interrupted:
      while not finished:
        cohort = draw(done + 1)
        round_began = time.perf_counter()
        state, info = run_round(
          algorithm, step, state, train, cohort, round_key, done + 1
        )
        info = processes.on_host(info)
        rounds_seconds.append(time.perf_counter() - round_began)
        info = derived.added_to(info, state)
        _check_finite(done + 1, info, algorithm.train is not None, checkpoints)
        done += 1
        steps += int(info.steps)
        record = records.round_record(done, info, train)
        settled = records.settled([*out.records, record], patience)
        finished = done == rounds or settled
        stop = processes.any_of(interrupted()) and not finished
        if finished or (eval_every and done % eval_every == 0):
          bar.set_description('evaluating')
          measured = evaluation.measure(state, done)
          bar.set_description()
          record |= evaluation.record(measured)
        out.write(record | {'seconds': rounds_seconds[-1]})
        bar.set_postfix(records.progress(out.records))
        bar.update()
        due = checkpoint_every and done % checkpoint_every == 0
        if checkpoints is not None and (due or stop or finished):
          checkpoints.save(done, state)
        if stop:
          raise Stopped.after(done, rounds, folder)
    if measured is None:  # Nothing was left to do.
      measured = evaluation.measure(state, done)
      if 'deployed' not in out.records[-1]:  # Stopped here between evaluations.
        out.amend(evaluation.record(measured))

    picture = {}
    if make_portrait:
      picture = figure_data.draw(
        algorithm, state, train, keys[prng_streams.PORTRAIT], programs
      )
      picture = figure_data.in_order(picture, places) | {'label_counts': label_counts}
      picture |= figure_data.sheets(picture, on_host)
    timing = records.timing(
      compiling.seconds(), rounds_seconds, steps, time.perf_counter() - began
    )
    unseen_scores = None if unseen is None else evaluation.unseen(state, unseen)
    summary = records.summary(
      out.records,
      config or {},
      seed,
      label_counts,
      test,
      unseen_scores,
      notes,
      timing,
      local.mesh,
    )
    summary['data_placement'] = data_placement
    return result(summary, picture, evaluation.clients(measured, places))


def check(
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
      f'{argument("clients_per_round", clients_per_round)} is more than the '
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


def _digest(
  local: LocalTraining,
  data_placement: str,
  taking_part: tuple[FederatedData, FederatedData],
  unseen: tuple[FederatedData, FederatedData] | None,
) -> str:
  """The digest of a run's data, of which a process reads what it needs anyway."""
  pairs = [taking_part] if unseen is None else [taking_part, unseen]
  here = [held_here(local, train, data_placement) for train, _ in pairs]
  splits = [split for pair in pairs for split in pair]
  return digest_of_data(*splits, here=[own for own in here for _ in range(2)])


def _check_finite(
  round_number: int,
  info: RoundInfo,
  penalized: bool,
  checkpoints: checkpoint.Checkpoints | None,
) -> None:
  """Raises `Diverged` if nothing sound is left of a round."""
  value = None if info.clusters is None else info.clusters.objective
  distance = 0.0 if value is None else float(value)
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
  lower = '`learning_rate`'
  if penalized:
    lower += ', or the penalty (`prox_lambda`, `prox_mu`)'
  raise Diverged(f'Round {round_number}: {what}; lower {lower}.{kept}')


def _bar(rounds: int, done: int, progress: bool | None) -> tqdm.tqdm:
  """A progress bar; by default on terminals only."""
  hidden = None if progress is None else not progress
  return tqdm.tqdm(total=rounds, initial=done, unit='round', disable=hidden)
