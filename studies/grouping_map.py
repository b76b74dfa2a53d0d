r"""When to use what: accuracy by strength of grouping and examples a client.

  python -m studies.grouping_map --save=grouping_map
  python -m studies.grouping_map --draw=grouping_map

MNIST on clients in four groups whose images are turned by 0, s * 90, s * 180 and
s * 270 degrees, where s is the strength of the grouping, from 0 (no groups) to 1.
One or two methods stand for each family of `docs/methods.md` (PACFL compares images as
its authors' code does); the oracle knows the groups.
All train with the same rounds, batches and learning rate, and the figure is the
deployed micro accuracy. `--draw` makes the figure of saved results: a map of FedAvg and
one of each other method minus FedAvg.
"""

import itertools
import json
import pathlib
from typing import Any

import jax
import numpy as np
import optax
from absl import app, flags
from jax.sharding import Mesh

from benchmarks import common
from fesem_jax import algorithms, data, models
from fesem_jax.core import sharding
from fesem_jax.core.federated_data import FederatedData
from fesem_jax.core.local_training import local_training
from fesem_jax.data import partitions, with_true_groups
from fesem_jax.run.simulation import simulate
from fesem_jax.server import optimizers as server_optimizers
from fesem_jax.utils.errors import Diverged, UserError

_ADAM = server_optimizers.adam(0.03)
# Family -> method and its options.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
  'one model: FedAvg': ('fed_avg', {}),
  'adaptive server: FedAdam': ('fed_opt', {'server_optimizer': _ADAM}),
  'by weights: FeSEM(4)': ('fesem', {'num_clusters': 4}),
  'by losses: IFCA(4)': (
    'hypo_cluster', {'num_clusters': 4, 'init_restarts': 20, 'init_rounds': 2}
  ),
  'by gradients: CFL-GP(4)': ('cfl_gp', {'num_clusters': 4}),
  'by first updates: FedGroup(4)': ('fed_group', {'num_clusters': 4}),
  'by images: PACFL(4)': ('pacfl', {'num_clusters': 4, 'proximity': 'entries'}),
  'K found: FedDrift': ('fed_drift', {}),
  'mixtures: FedEM(4)': ('fed_em', {'num_clusters': 4}),
  'personal: Ditto': ('ditto', {}),
  'training alone: NonFed': ('non_fed', {}),
  'oracle': ('oracle', {}),
}  # fmt: skip
_FOLDER = common.RESULTS
_OF_A_ROW = ('date', 'processor', 'commit')

_STRENGTHS = flags.DEFINE_list('strengths', ['0', '0.15', '0.4', '1'], 'Values of s.')
_EXAMPLES = flags.DEFINE_list('examples', ['10', '50', '200', '1000'], 'A client.')
_CLIENTS = flags.DEFINE_integer('num_clients', 40, 'Clients.')
_ROUNDS = flags.DEFINE_integer('rounds', 30, 'Rounds of two local epochs.')
_RATE = flags.DEFINE_float('learning_rate', 0.1, 'Local learning rate.')
_SEEDS = flags.DEFINE_integer('num_seeds', 1, 'Seeds.')
_SAVE = flags.DEFINE_string('save', '', 'Name of the file of results.')
_DRAW = flags.DEFINE_string('draw', '', 'Name of results to draw, as PNG in docs.')


def federation(
  strength: float, examples: int, seed: int
) -> tuple[FederatedData, FederatedData]:
  """The two splits; group i is turned by i * 90 * strength degrees."""
  degrees = [90 * strength * group for group in range(4)]
  return data.load(
    'mnist',
    partition=partitions.Rotated(degrees) if strength else partitions.Iid(),
    num_clients=_CLIENTS.value,
    examples_per_client=examples,
    seed=seed,
  )


def accuracy(
  family: str, splits: tuple[FederatedData, FederatedData], seed: int
) -> Any:
  """The deployed micro accuracy in percent and the ARI of a family's method."""
  train, test = splits
  name, options = FAMILIES[family]
  if name == 'oracle':
    if train.info.clusters is None:
      name, options = 'fed_avg', {}  # No groups: one for all.
    else:
      train = with_true_groups(train)
  model = models.build('mlp', train.example_shape, train.num_classes, hidden=(50,))
  sgd = optax.sgd(_RATE.value)
  local = local_training(model, sgd, epochs=2, batch_size=10)
  algorithm = algorithms.build(name, local, **options)
  try:
    result = simulate(
      algorithm, train, test, rounds=_ROUNDS.value, seed=seed, eval_every=0,
      finetune_epochs=0, progress=False,
    )  # fmt: skip
  except (Diverged, UserError) as e:
    print(f'{family}: {e}')
    return None, None
  clusters = result.summary['clusters'] or {}
  return 100 * result.summary['deployed']['micro_accuracy'], clusters.get('ari')


def measured(mesh: Mesh) -> list[dict[str, Any]]:
  """A row for each strength, number of examples, seed and family; saved as it goes."""
  path = _FOLDER / f'{_SAVE.value}.json'
  where, rows = common.where(mesh), list[dict[str, Any]]()
  if _SAVE.value and path.is_file():
    held = json.loads(path.read_text())
    # Rows of several runs say which of them they are of.
    rows = [{name: held[name] for name in _OF_A_ROW} | row for row in held['rows']]
  keys = ('strength', 'examples', 'seed', 'family')
  known = {tuple(row[key] for key in keys) for row in rows}
  grid = itertools.product(
    map(int, _EXAMPLES.value), map(float, _STRENGTHS.value), range(_SEEDS.value)
  )
  for examples, strength, seed in grid:
    splits = None
    for family in FAMILIES:
      if (strength, examples, seed, family) in known:
        continue
      splits = splits or federation(strength, examples, seed)
      deployed, ari = accuracy(family, splits, seed)
      shown = 'failed' if deployed is None else f'{deployed:.2f}'
      print(f'{examples:5} {strength:5.2f} {seed} {family:28} {shown}', flush=True)
      row = dict(zip(keys, (strength, examples, seed, family), strict=True))
      row |= {'deployed': deployed, 'ari': ari}
      rows.append({name: where[name] for name in _OF_A_ROW} | row)
      if _SAVE.value:
        of_run: dict[str, Any] = {'rounds': _ROUNDS.value, 'clients': _CLIENTS.value}
        of_run |= {'learning_rate': _RATE.value, **where}
        path.write_text(json.dumps(of_run | {'rows': rows}, indent=1) + '\n')
    jax.clear_caches()
  return rows


def draw(name: str) -> pathlib.Path:
  """Draws a map of FedAvg, and of each other method minus FedAvg."""
  from matplotlib import pyplot as plt

  from fesem_jax.plots.style import STYLE

  rows = json.loads((_FOLDER / f'{name}.json').read_text())['rows']
  strengths = sorted({row['strength'] for row in rows})
  sizes = sorted({row['examples'] for row in rows})

  def table(family: str) -> np.ndarray:
    shares = np.full((len(sizes), len(strengths)), np.nan)
    for i, size in enumerate(sizes):
      for j, strength in enumerate(strengths):
        values = [
          row['deployed']
          for row in rows
          if (row['family'], row['examples'], row['strength'])
          == (family, size, strength)
          and row['deployed'] is not None
        ]
        shares[i, j] = np.mean(values) if values else np.nan
    return shares

  measured = {row['family'] for row in rows}
  reference, *others = (family for family in FAMILIES if family in measured)
  base = table(reference)
  panels = {reference: base} | {family: table(family) - base for family in others}
  with plt.rc_context({**STYLE, 'axes.grid': False}):
    figure, axes = plt.subplots(3, 4, figsize=(12.5, 8.5), layout='constrained')
    limit = max(np.nanmax(np.abs(panels[family])) for family in others)
    for axis in axes.flat[len(panels) :]:
      axis.axis('off')
    for axis, (family, values) in zip(axes.flat, panels.items(), strict=False):
      first = family == reference
      scale = {'cmap': 'Greys', 'vmin': 0, 'vmax': 150}
      if not first:
        scale = {'cmap': 'RdBu', 'vmin': -limit, 'vmax': limit}
      axis.imshow(values, origin='lower', aspect='auto', **scale)
      for i, j in np.ndindex(values.shape):
        text = f'{values[i, j]:.1f}' if first else f'{values[i, j]:+.1f}'
        dark = not first and abs(values[i, j]) > 0.7 * limit
        color = 'white' if dark else 'black'
        axis.text(j, i, text, ha='center', va='center', fontsize=9, color=color)
      axis.set_title(family if first else f'{family} minus FedAvg', fontsize=9)
      axis.set_xticks(range(len(strengths)), [f'{s:g}' for s in strengths])
      axis.set_yticks(range(len(sizes)), [str(size) for size in sizes])
    for axis in axes[-1]:
      axis.set_xlabel('strength of the grouping')
    for axis in axes[:, 0]:
      axis.set_ylabel('examples a client')
    path = pathlib.Path('docs/figures') / f'{name}.png'
    figure.savefig(path)
  return path


def main(argv: list[str]) -> None:
  """Measures, or draws what was measured."""
  del argv
  if _DRAW.value:
    print(draw(_DRAW.value))
    return
  sharding.setup_devices(0)
  measured(sharding.client_mesh(0))


if __name__ == '__main__':
  app.run(main)
