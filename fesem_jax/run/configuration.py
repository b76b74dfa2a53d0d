"""Configurations of runs: what a workdir and the run that continues it share."""

import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr

from fesem_jax.core import placement, sharding
from fesem_jax.core.arrangement import process_clients
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.made_by import PLAIN
from fesem_jax.core.traced_functions import called_by
from fesem_jax.run import programs
from fesem_jax.run.runner import Runner
from fesem_jax.run.spec import Spec
from fesem_jax.utils import processes, provenance
from fesem_jax.utils.errors import WorkdirError
from fesem_jax.utils.version import __version__

# Entries that decide where and how fast a run happens and how long it is; `code` is
# compared by itself.
FREE = {
  'workdir', 'data_dir', 'resume', 'rounds', 'clients_per_chunk', 'shared_start',
  'num_devices', 'tensorboard', 'checkpoint_every', 'patience', 'own_code', 'code',
}  # fmt: skip
# Likewise of `LocalTraining`.
_PLACEMENT = {
  'clients_per_chunk', 'clients_per_shared_start', 'shared_start', 'data_placement',
}  # fmt: skip


def default_config(spec: Spec) -> dict[str, Any]:
  """The plain values of a run whose caller gave no `config`."""
  selection, unseen, local = spec.selection, spec.unseen, spec.algorithm.local
  training = local._asdict() | local.schedule._asdict()
  made = {'method': spec.algorithm.made_by, 'model': local.model.made_by}
  return {
    'seed': int(spec.seed),
    'clients_per_round': selection.name if selection else int(spec.clients_per_round),
    'finetune_epochs': int(spec.finetune_epochs),
    'unseen': None if unseen is None else np.asarray(unseen[0].client_ids).tolist(),
    'training': {
      name: x for name, x in training.items()
      if isinstance(x, PLAIN) and name not in _PLACEMENT
    },
    **{name: by and by.described() for name, by in made.items()},
  }  # fmt: skip


def identity(spec: Spec, runner: Runner, train: FederatedData) -> dict[str, Any]:
  """Entries that a workdir must have in common with the run that continues it."""
  local, phases = spec.algorithm.local, spec.phases
  entries = default_config(spec) if spec.config is None else spec.config
  if spec.config is None or 'own_code' in spec.config:
    entries = entries | {'code': _code(spec, runner, train)}
  pairs = [phase[1:] for phase in phases] + ([spec.unseen] if spec.unseen else [])
  present = [process_clients(local, split, placement.of(train)) for split, _ in pairs]
  digest = digest_of_data(
    *(split for pair in pairs for split in pair),
    here=[mask for mask in present for _ in range(2)],
  )
  entries = entries | {'data_digest': digest}
  if phases[1:]:
    entries |= {'data_change_in': [phase.first_round for phase in phases[1:]]}
  entries |= placement.identity(train, local.mesh)
  processes.check_same('its configuration or data', entries)
  return entries


def _code(spec: Spec, runner: Runner, train: FederatedData) -> dict[str, Any]:
  """The entry `code`: what a round computes, and where that can be compared."""
  local = spec.algorithm.local
  where = [local.mesh.devices.flat[0].platform, local.mesh.size]
  where += [getattr(local, name) for name in sorted(_PLACEMENT)]
  where += ['identical'] * sharding.is_identical
  where += [train.max_examples, *(x.shape for x in jax.tree.leaves(train))]
  where += [jax.__version__, provenance.commit() or __version__]
  text = programs.once(('text of a round', runner), lambda: _text_of(runner.traced))
  numbers = repr(runner.arguments.values(spec.values))
  return {
    'machine': ' '.join(map(str, where)),
    'round': hashlib.sha256(f'{text}\n{numbers}'.encode()).hexdigest(),
  }


# Of objects in the memory, and of lines in files.
_ADDRESS = re.compile(r'0x[0-9a-f]+| at [^ ]+:\d+')


def _text_of(traced: jax.stages.Traced) -> str:
  """A text that is equal, also in another process, for functions that compute alike."""

  def constants(jaxpr: Jaxpr) -> Iterator[Any]:
    for equation in jaxpr.eqns:
      for inner, consts in called_by(equation):
        yield from consts
        yield from constants(inner)

  def digest(x: Any) -> str:
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      x = jax.random.key_data(x)
    array = np.ascontiguousarray(x)
    content = hashlib.sha256(array.tobytes()).hexdigest()
    return f'{array.dtype}{list(array.shape)} {content}'

  closed, structure = traced.jaxpr, str(jax.tree.structure(traced.out_info))
  each = map(digest, [*closed.consts, *constants(closed.jaxpr)])
  return '\n'.join([_ADDRESS.sub('', str(closed.jaxpr)), structure, *each])


def digest_of_data(
  *splits: FederatedData, here: Sequence[np.ndarray | None] | None = None
) -> str:
  """A digest that differs when any example, label or client of splits on the host does.

  For each split, `here` is [M] bool, the clients whose examples this process has; None
  where every process has all.
  """
  digest = hashlib.sha256()
  for split in splits:
    truth, attack = split.info.clusters, split.attack
    names = np.asarray(split.info.names).astype(str)
    arrays = jax.tree.leaves(dataclasses.replace(split, x=None))
    arrays[3:3] = [names, np.array([]) if truth is None else truth]
    arrays += [] if attack is None else [np.array([repr(attack.kinds)])]
    for array in map(np.ascontiguousarray, arrays):
      digest.update(f'{array.dtype} {array.shape}'.encode())
      digest.update(array.view(np.uint8).data)
    kind = f'{split.x.dtype} {split.example_shape}'
    kind = f'{kind} {split.num_classes} {split.scale} {split.task}'
    digest.update(kind.encode())
  here = here or [None] * len(splits)
  if any(mask is not None for mask in here):  # Or their arrays could not be added up.
    processes.check_same('its clients', digest.hexdigest())
  for split, mask in zip(splits, here, strict=True):
    digest.update(_digests_of_examples(split, mask).data)
  return digest.hexdigest()[:16]


def _digests_of_examples(split: FederatedData, own: np.ndarray | None) -> np.ndarray:
  """[M, 16] uint8 digests of each client's examples."""
  offsets = np.asarray(split.offsets)
  digests = np.zeros((split.num_clients, 16), np.uint8)
  for i in range(split.num_clients) if own is None else np.flatnonzero(own):
    rows = np.ascontiguousarray(split.x[offsets[i] : offsets[i + 1]])
    digest = hashlib.sha256(rows.view(np.uint8).data).digest()
    digests[i] = np.frombuffer(digest, np.uint8)[:16]
  return digests if own is None else processes.total(digests)


def check_same(
  workdir: pathlib.Path, saved: dict[str, Any], config: dict[str, Any]
) -> None:
  """Raises `WorkdirError` unless two configurations are of one run."""
  old, new = _flat(saved), _flat(config)
  differing = [
    'the data' if name == 'data_digest' else _both(name, old, new)
    for name in sorted(old.keys() | new.keys())
    if old.get(name) != new.get(name)
  ]
  old, new = (x.get('code') or {'machine': None} for x in (saved, config))
  if not differing and old['machine'] == new['machine'] and old != new:
    differing = ['the model, method or training was edited']
  if differing:
    more = ', ...' if differing[3:] else ''
    raise WorkdirError(
      f'{workdir} holds another run: {", ".join(differing[:3])}{more}; choose another '
      'workdir'
    )


def _flat(config: dict[str, Any]) -> dict[str, Any]:
  """Values by their names, as method.num_clusters; without those of `FREE`."""
  leaves = jax.tree_util.tree_leaves_with_path(
    {'data_placement': 'replicated'} | config, lambda x: not isinstance(x, dict)
  )
  return {
    jax.tree_util.keystr(path, simple=True, separator='.'): x
    for path, x in leaves
    if not FREE & {key.key for key in path}
  }


def _both(name: str, old: dict[str, Any], new: dict[str, Any]) -> str:
  before, now = (f'{x[name]!s:.40}' if name in x else 'absent' for x in (old, new))
  return f'{name} {before} there, {now} here'
