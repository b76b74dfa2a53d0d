"""Flags of data: sources, columns of tables, partitions."""

from fesem_jax import data, tasks
from fesem_jax.data import (
  partitions,
  pictures,
)
from fesem_jax.data.options import Options
from fesem_jax.data.partitions.value import DEALT, DRIFT_STARTS, GROUPED, Partition

from .entry import fields, flag

_SOURCES = '; '.join(
  f'{name} ({", ".join(source.name for source in sources)})'
  for name, sources in data.DATASETS.items()
)

# Options of data sets and partitions that `data.load` alone has.
_IN_PYTHON = (
  'background', 'cifar100_labels', 'emnist_split', 'hub_config', 'hub_image_side',
  'synthetic_alpha', 'synthetic_beta', 'synthetic_features', 'synthetic_classes',
  'synthetic_difference', 'synthetic_distance', 'synthetic_mix', 'corruption_strength',
  'label_swaps', 'leaf_users', 'lognormal_sigma', 'noise_variance', 'power_law_sigma',
  'rotation_sampling', 'vocabulary',
)  # fmt: skip

DATA = (
  flag('string', 'dataset', 'digits',
    f"Data set and its sources: {_SOURCES}; leaf:FOLDER for any data in LEAF's JSON "
    'layout; npz:FILE for arrays x, y and optionally client, split and cluster; '
    'text:PLACE for a text of speeches or a folder of .txt files; '
    'table:PLACE for a .csv, .jsonl, .parquet or .feather file with a row for each '
    'example, or a folder of them; images:FOLDER for images in folders of classes; '
    'pfllib:FOLDER and flbench:FOLDER for what PFLlib and FL-bench generate; '
    'MODULE:FUNCTION for data of your own, a function that returns such arrays, the '
    'examples of each client, a dataset of PyTorch or a data frame.'),
  flag('string', 'dataset_options', '',
    'NAME=VALUE,...: keyword-only arguments of --dataset=MODULE:FUNCTION.'),
  flag('string', 'source', '',
    'Where the data set comes from, as listed for --dataset; default: the first one '
    'whose files are in --data_dir.'),
  flag('enum', 'task', '',
    'Task: classification; regression of one number or several (RMSE, R2); sequence, '
    'the next token at every position (accuracy by token, perplexity); or multilabel, '
    'any number of labels for each example, of two classes one (exact match, F1, AUC). '
    "Default: the data set's task, mostly classification.",
    enum_values=('', *tasks.TASKS)),
  flag('string', 'data_dir', '',
    'Folder of the data files, which holds mnist/, qmnist/ and so on; default: the '
    'environment variable FESEM_DATA_DIR, else ./data.'),
  *fields(Options, {
    'image_groups': pictures.GROUPS,
  }, left_out=_IN_PYTHON),
  flag('integer', 'seed', 0, 'Seed of all random numbers.',
    lower_bound=0, upper_bound=2**31 - 1),
)  # fmt: skip

PARTITION = (
  flag('string', 'partition', None,
    f'How examples are dealt to clients: {", ".join(partitions.NAMES)}; or two of '
    f'them, as in rotated+dirichlet: groups ({", ".join(GROUPED)}, or cluster, which '
    'are those that the data set knows), and labels or '
    f'sizes inside each group ({", ".join(DEALT)}); noisy goes with either. Default: '
    "'natural' where the data set has clients of its own, 'cluster' where it has known "
    "clusters alone, else 'iid'."),
  *fields(Partition, {
    'drift_start': DRIFT_STARTS,
  }, left_out=['name', *_IN_PYTHON]),
)  # fmt: skip
