"""Part b: rounds on the accelerator beside those of the CPU, from the same state.

A round of every method is compiled for the CPU, and for the accelerator with products
in float32 ('highest') and as they are by default there. Two rounds are run, each from
the state that the CPU has before it. `apart` is the distance between both new states,
relative to how far the CPU's has moved; `differ` is how many integers in the state
differ, such as clusters of clients. The start of methods with centers, sums of models,
E-steps, states that are streamed or offloaded, and a run that the CPU began follow.
"""

import multiprocessing
import os
import pathlib
import queue
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from benchmarks import common
from benchmarks.accelerator import measuring
from benchmarks.accelerator.measuring import Row, Watch
from fesem_jax import algorithms, data, models
from fesem_jax.core import placement, prng_streams, sharding
from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import Machine, Precision, local_training
from fesem_jax.run.simulation import run_one
from fesem_jax.run.spec import Spec
from fesem_jax.server import em

# Options where the defaults would do nothing in the first two rounds.
OPTIONS: dict[str, dict[str, Any]] = {
  'fed_cluster': {'min_rounds': 0, 'check_every': 1, 'min_size': 2},
  'fed_drift': {'check_every': 1},
  'flux': {'warmup_rounds': 1},
  'ditto': {'ditto_lambda': 0.5},
  'p_fed_me': {'pfedme_lambda': 2.0},
  'fed_bn': {'norm_layers': ['logits']},  # The network has no other layer to keep.
}

# Methods whose clients train convolutions, which all others would train alike.
_CONVOLVE = ('fed_avg', 'fesem', 'hypo_cluster', 'ditto', 'fed_em', 'scaffold')

_CLIENTS = 16
# Seconds that a method may take in all.
_MOST = 60


def measure(watch: Watch) -> None:
  """Compares everything, several methods at a time."""
  names = list(algorithms.METHODS)
  if watch.small:
    names = ['fed_avg', 'fesem']
  tasks = [
    ('checkpoint', ''), ('states', 'fesem streamed'), ('states', 'fesem offloaded'),
    ('states', 'ditto offloaded'), ('sums', ''), ('start', 'fesem'),
    ('start', 'hypo_cluster'),
  ]  # fmt: skip
  if watch.small:
    tasks = [('states', 'fesem streamed'), ('sums', '')]
  tasks += [('method', name) for name in names]
  # The processes share the accelerator.
  os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  todo: queue.Queue[tuple[str, str]] = queue.Queue()
  for task in tasks:
    todo.put(task)
  count = 1 if watch.small else min(12, max(1, sharding.cores() * 3 // 4))
  threads = [threading.Thread(target=_serve, args=(todo, watch)) for _ in range(count)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()


def _serve(todo: 'queue.Queue[tuple[str, str]]', watch: Watch) -> None:
  """Gives tasks to a process, and to a new one where that takes too long or dies."""
  context = multiprocessing.get_context('spawn')
  process = pipe = None
  while True:
    try:
      kind, name = todo.get_nowait()
    except queue.Empty:
      break
    if not watch.has(5, what=kind, method=name):
      continue
    if process is None:
      pipe, theirs = context.Pipe()
      process = context.Process(target=_work, args=(theirs, watch.small))
      process.start()
      theirs.close()
    assert pipe is not None
    try:
      pipe.send((kind, name))
      most = watch.left() + 3
      end = time.time() + (most if watch.small else min(_MOST, most))
      while (row := _next(pipe, end)) is not None:
        watch.say({'what': kind, 'method': name} | row)
    except (EOFError, OSError, TimeoutError) as e:
      process.kill()
      process.join()
      text = f'{type(e).__name__}, exit code {process.exitcode}'
      watch.say({'what': kind, 'method': name, 'error': text})
      process = None
  if process is not None and pipe is not None:
    pipe.close()
    process.join(2)
    process.kill()


def _next(pipe: Connection, end: float) -> Row | None:
  if not pipe.poll(max(0.0, end - time.time())):
    raise TimeoutError
  return pipe.recv()


def _work(pipe: Connection, small: bool) -> None:
  """Answers tasks with rows and then None."""
  measuring.setup()
  tasks = {
    'method': compare_rounds, 'start': compare_starts, 'sums': compare_sums,
    'states': compare_states, 'checkpoint': continue_from_cpu,
  }  # fmt: skip
  watch = Watch(pipe.send, time.time() + 600, small, {}, '')
  while True:
    try:
      kind, name = pipe.recv()
    except EOFError:
      return
    watch.tried(lambda: tasks[kind](watch, name))  # noqa: B023
    pipe.send(None)


def _digits() -> tuple[FederatedData, FederatedData]:
  return data.load(
    'digits', partition='rotated(groups=2)', num_clients=_CLIENTS,
    examples_per_client=25,
  )  # fmt: skip


def _options(name: str) -> dict[str, Any]:
  known = algorithms.options(name)
  return ({'num_clusters': 2} if 'num_clusters' in known else {}) | OPTIONS.get(
    name, {}
  )


class _Case:
  """A method on a mesh: its data, keys and cohort there."""

  def __init__(self, name: str, mesh: Mesh, precision: Precision, **options: Any):
    train = _digits()[0]
    network = 'small_cnn' if name in _CONVOLVE else 'mlp'
    local = local_training(
      models.build(network, train.example_shape, train.num_classes, (32,)),
      optax.sgd(0.05),
      batch_size=10,
      machine=Machine(clients_per_chunk=8, mesh=mesh, precision=precision),
    )
    self.mesh = mesh
    self.algorithm: Algorithm = algorithms.build(
      name, local, **_options(name), **options
    )
    if name == 'oracle':
      train = data.with_true_groups(train)
    self.train = placement.place(train, mesh, 'replicated')
    streams = prng_streams.INIT, prng_streams.ROUNDS
    keys = [prng_streams.folded(jax.random.key(0), stream) for stream in streams]
    self.keys = sharding.replicate(keys, mesh)
    self.cohort = common.everyone(self.train)
    start = common.start_of(self.algorithm, self.train, self.keys[0])
    self._init, self.like = start

  def start(self) -> Any:
    """The state before the first round."""
    return self._init(self.keys[0], self.train)

  def compile(self) -> None:
    """Compiles a round."""
    rest = self.train, self.cohort, self.keys[1]
    self.step = common.round_of(self.algorithm, self.like, *rest)

  def round(self, held: Any, number: int) -> tuple[Any, Any]:
    """The state after a round and its info, both on the host, from one there."""
    state = sharding.place(held, jax.tree.map(lambda x: x.sharding, self.like))
    state, info = common.run_round(
      self.algorithm, self.step, state, self.train, self.cohort, self.keys[1], number
    )
    return on_host(state), on_host(info)


def on_host(tree: Any) -> Any:
  """NumPy arrays in place of those on devices; keys as their bits."""

  def held(x: Any) -> Any:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      return jax.device_put(x, jax.devices('cpu')[0])
    return np.array(x)

  return jax.tree.map(held, tree)


def compared(before: Any, want: Any, got: Any) -> Row:
  """Distance of two states, relative to the move of one.

  `move` is relative to the length of the state before. Numbers that are not finite are
  equal to themselves.
  """
  square = moved = length = 0.0
  differ = 0
  for old, a, b in zip(*map(_arrays, (before, want, got)), strict=True):
    if not np.issubdtype(a.dtype, np.floating):
      differ += int((a != b).sum())
      continue
    old, a, b = (np.nan_to_num(x.astype(np.float64)) for x in (old, a, b))
    square += np.square(a - b).sum()
    moved += np.square(a - old).sum()
    length += np.square(old).sum()
  return {
    'apart': float(np.sqrt(square / (moved or length or 1.0))),
    'move': float(np.sqrt(moved / (length or 1.0))), 'differ': differ,
  }  # fmt: skip


def _arrays(tree: Any) -> list[np.ndarray]:
  leaves = []
  for x in jax.tree.leaves(tree):
    key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    leaves.append(np.asarray(jax.random.key_data(x) if key else x))
  return leaves


def compare_rounds(watch: Watch, name: str) -> None:
  """Two rounds of a method at each precision."""
  began = time.time()
  cpu = _Case(name, measuring.host(), 'highest')
  cases = {p: _Case(name, measuring.chip(), p) for p in ('highest', 'default')}
  for case in (cpu, *cases.values()):
    case.compile()
  before = [on_host(cpu.start())]
  infos = []
  for number in (1, 2):
    state, info = cpu.round(before[-1], number)
    before.append(state)
    infos.append(info)
  for precision, case in cases.items():
    row: Row = {'precision': precision}
    for number in (1, 2):
      state, info = case.round(before[number - 1], number)
      differences = compared(before[number - 1], before[number], state)
      loss = float(infos[number - 1].train_loss)
      differences['loss'] = abs(float(info.train_loss) - loss) / max(abs(loss), 1e-9)
      row |= {f'{k}{"" if number == 1 else " 2"}': v for k, v in differences.items()}
    watch.say(row | {'seconds': time.time() - began})


def compare_starts(watch: Watch, name: str) -> None:
  """The start of a method, whose k-means and restarts choose among clusters."""
  starts = [
    on_host(_Case(name, mesh, 'highest').start())
    for mesh in (measuring.host(), measuring.chip())
  ]
  zero = jax.tree.map(np.zeros_like, starts[0])
  watch.say(compared(zero, *starts))


def compare_sums(watch: Watch, name: str) -> None:
  """The E-step and the M-step on many large models, beside float64."""
  del name
  clients, size, k = (64, 1000, 4) if watch.small else (2048, 20_000, 8)
  rng = np.random.default_rng(0)
  truth = rng.integers(0, k, clients)
  offset = rng.normal(size=(k, size))
  stack = (10 + offset[truth] + 3 * rng.normal(size=(clients, size))).astype(np.float32)
  centers = (10 + offset).astype(np.float32)
  exact = np.stack([stack[truth == i].astype(np.float64).mean(0) for i in range(k)])
  for mesh in (measuring.host(), measuring.chip()):
    placed, origins = sharding.replicate(({'w': stack}, {'w': centers}), mesh)
    assigned, distance = jax.jit(em.e_step)(placed, origins)
    weights = sharding.replicate(jnp.ones(clients), mesh)
    new = jax.jit(em.m_step)(placed, assigned, weights, origins)['w']
    square = np.square(stack.astype(np.float64) - centers[truth]).sum(1)
    watch.say(
      {
        'device': mesh.devices.flat[0].platform,
        'differ': int((np.asarray(assigned) != truth).sum()),
        'distances': float(np.abs(np.asarray(distance) / square - 1).max()),
        'means': float(np.linalg.norm(np.asarray(new) - exact) / np.linalg.norm(exact)),
        'means, greatest': float(np.abs(np.asarray(new) / exact - 1).max()),
      }
    )


def compare_states(watch: Watch, name: str) -> None:
  """A method whose clients' models are streamed or in the host's memory."""
  method, kept = name.split()
  ends = {}
  for state_of in ('stacked', kept):
    case = _Case(method, measuring.chip(), 'highest', client_state=state_of)
    case.compile()
    state = case.start()
    for number in (1, 2):
      state, _ = common.run_round(
        case.algorithm, case.step, state, case.train, case.cohort, case.keys[1], number
      )
    where = {x.sharding.memory_kind for x in jax.tree.leaves(state)}
    used = jax.jit(case.algorithm.client_params)(
      state, case.train, jnp.arange(_CLIENTS)
    )
    ends[state_of] = on_host(used)
  zero = jax.tree.map(np.zeros_like, ends[kept])
  differences = compared(zero, ends['stacked'], ends[kept])
  watch.say({'memory': ', '.join(sorted(map(str, where)))} | differences)


def continue_from_cpu(watch: Watch, name: str) -> None:
  """A run that the CPU begins and the accelerator ends, beside the CPU's own."""
  del name
  train, test = _digits()

  def result(mesh: Mesh, count: int, folder: str) -> Any:
    local = _Case('fesem', mesh, 'highest').algorithm.local
    algorithm = algorithms.build('fesem', local, num_clusters=2)
    spec = Spec(
      algorithm=algorithm, train=train, test=test, rounds=count,
      workdir=pathlib.Path(folder), config={'name': 'a run'}, progress=False,
      make_portrait=False, save_models=False, eval_every=0, finetune_epochs=0,
    )  # fmt: skip
    return run_one(spec)

  with tempfile.TemporaryDirectory() as folder:
    cpu, chip = measuring.host(), measuring.chip()
    before = on_host(result(cpu, 2, f'{folder}/both').state)
    got = result(chip, 4, f'{folder}/both')
    want = result(cpu, 4, f'{folder}/cpu')
    platform = jax.tree.leaves(got.state)[0].devices()
    watch.say(
      compared(before, on_host(want.state), on_host(got.state))
      | {
        'ended on': next(iter(platform)).platform,
        'accuracy': got.summary['deployed']['micro_accuracy'],
        'accuracy of the CPU': want.summary['deployed']['micro_accuracy'],
      }
    )
