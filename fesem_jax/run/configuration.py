"""Configurations of runs: what a workdir and the run that continues it share."""

import pathlib
from typing import Any

import jax
import numpy as np

from fesem_jax.core.algorithm import Algorithm
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.made_by import PLAIN
from fesem_jax.run.spec import Spec
from fesem_jax.run.traced import Traced
from fesem_jax.utils import provenance
from fesem_jax.utils.errors import WorkdirError

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


def code_of(
  algorithm: Algorithm, traced: jax.stages.Traced, train: FederatedData
) -> dict[str, Any]:
  """The entry `code`: what a traced round computes, and where that can be compared."""
  local = algorithm.local
  params = jax.eval_shape(local.model.init, jax.random.key(0))
  named = jax.tree_util.tree_leaves_with_path(params)
  where = [local.mesh.devices.flat[0].platform, local.mesh.size]
  where += [getattr(local, name) for name in sorted(_PLACEMENT)]
  where += [train.max_examples, *(x.shape for x in jax.tree.leaves(train))]
  commit = provenance.commit() or provenance.versions()['fesem_jax']
  return {
    'versions': {'jax': jax.__version__, 'fesem_jax': commit},
    'machine': ' '.join(map(str, where)),
    'parameters': {
      jax.tree_util.keystr(path, simple=True, separator='/'): str(x.shape)
      for path, x in named
    },
    'round': Traced(traced).digest_with_numbers,
  }


def check_same(
  workdir: pathlib.Path, old: dict[str, Any], config: dict[str, Any]
) -> None:
  """Raises `WorkdirError` unless two configurations are of one run."""
  there, here = _flat(old), _flat(config)
  differing = [
    'the data' if name == 'data_digest' else _both(name, there, here)
    for name in sorted(there.keys() | here.keys())
    if there.get(name) != here.get(name)
  ]
  differing = differing or _code_differs(old.get('code'), config.get('code'))
  if differing:
    more = ', ...' if differing[3:] else ''
    raise WorkdirError(
      f'{workdir} holds another run: {", ".join(differing[:3])}{more}; choose another '
      'workdir'
    )


def _flat(config: dict[str, Any], prefix: str = '') -> dict[str, Any]:
  """Values by their names, as method.num_clusters; without those of `FREE`."""
  values = {'data_placement': 'replicated'} if not prefix else {}
  for name, x in config.items():
    if isinstance(x, dict) and name not in FREE:
      values |= _flat(x, f'{prefix}{name}.')
    elif name not in FREE:
      values[f'{prefix}{name}'] = x
  return values


def _both(name: str, there: dict[str, Any], here: dict[str, Any]) -> str:
  one, other = (f'{x[name]!s:.40}' if name in x else 'absent' for x in (there, here))
  return f'{name} {one} there, {other} here'


def _code_differs(
  there: dict[str, Any] | None, here: dict[str, Any] | None
) -> list[str]:
  """What differs between the code of two runs, where it can be compared."""
  if there is None or here is None:
    return []
  one, other = there['parameters'], here['parameters']
  if names := [n for n in sorted(one | other) if one.get(n) != other.get(n)]:
    listed = [_both(name, one, other) for name in names[:3]]
    return [f"the model's parameters have other shapes: {', '.join(listed)}"]
  alike = all(there[name] == here[name] for name in ('versions', 'machine'))
  return ['code of the round differs'] if alike and there != here else []


def other_versions(old: dict[str, Any], config: dict[str, Any]) -> str | None:
  """A sentence on a run that began with other versions, or None."""
  there, here = (each.get('code', {}).get('versions') for each in (old, config))
  if not there or not here or there == here:
    return None
  pairs = [_both(name, there, here) for name in here if there.get(name) != here[name]]
  return f'began with other versions ({", ".join(pairs)}); results may differ'
