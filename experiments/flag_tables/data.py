"""Flags of data: sources, partitions, corruption, clients that are set aside."""

from fesem_jax import data, tasks
from fesem_jax.data import cifar, mnist, partitions, ratings, synthetic_table, texts
from fesem_jax.data.partitions import image_corruptions, rotation
from fesem_jax.data.partitions.value import DEALT, DRIFT_STARTS, GROUPED

from .entry import flag

_SOURCES = '; '.join(
  f'{name} ({", ".join(source.name for source in sources)})'
  for name, sources in data.DATASETS.items()
)

DATA = (
  flag('string', 'dataset', 'digits',
    f"Data set and its sources: {_SOURCES}; leaf:FOLDER for any data in LEAF's JSON "
    'layout; npz:FILE for arrays x, y and optionally client, split and cluster; '
    'text:PLACE for a text of speeches or a folder of .txt files; '
    'table:FILE for a .csv or .parquet file with a row for each example; '
    'pfllib:FOLDER and flbench:FOLDER for what PFLlib and FL-bench generate; '
    'MODULE:FUNCTION for data of your own, a function that returns such arrays or a '
    'data frame.'),
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
  flag('string', 'partition', None,
    f'How examples are dealt to clients: {", ".join(partitions.NAMES)}; or two of '
    f'them, as in rotated+dirichlet: groups ({", ".join(GROUPED)}, or cluster, which '
    'are those that the data set knows), and labels or '
    f'sizes inside each group ({", ".join(DEALT)}); noisy goes with either. Default: '
    "'natural' where the data set has clients of its own, 'cluster' where it has known "
    "clusters alone, else 'iid'."),
  flag('integer', 'num_clients', 0, 'Clients; 0: all natural clients, or 100.'),
  flag('integer', 'examples_per_client', 0,
    'Training examples of each client; 0: all examples.'),
  flag('integer', 'min_examples', 0,
    'Omits natural clients with fewer examples (training and test).'),
  flag('string', 'client_rows', '',
    'File of the examples of each client for --partition=rows: JSON, a list of row '
    'numbers for each client or an object with such a list by name, or two lists, '
    "train and test; FedML's or NIID-Bench's net_dataidx_map.txt; FL-bench's "
    "partition.pkl; FedScale's .csv. Rows count from 0, training examples first."),
  flag('integer', 'partition_groups', 4,
    'Groups of clients, the true clusters, in the partitions '
    f'{", ".join(GROUPED)}. Group g of rotated is turned by g * 360 / groups degrees, '
    'unless --rotations sets the angles.'),
  flag('bool', 'disjoint_groups', False,
    'Whether the groups share the images without overlap; otherwise each group has '
    'all images.'),
  flag('float', 'dirichlet_alpha', 0.5,
    "Concentration of the partitions dirichlet (clients' labels and sizes), "
    'dirichlet_labels (labels alone) and unequal (sizes alone); smaller is more '
    'skewed.'),
  flag('integer', 'dirichlet_min_examples', 0,
    "If positive, the dirichlet partition is NIID-Bench's: a client above the mean "
    'size gets no examples of later classes, and the draw is repeated until each '
    'client has at least this many examples.'),
  flag('integer', 'classes_per_client', 2,
    'Label shards of each client under the shards partition.'),
  flag('integer', 'labels_per_client', 2,
    'Labels of each client under the labels partition (label i mod L and random '
    'others, as in NIID-Bench) and under power_law (labels i, i + 1, ..., as in '
    "FedProx's MNIST)."),
  flag('float', 'lognormal_sigma', 0.3,
    "Clients' sizes under the lognormal partition are in proportion to exp(sigma z)."),
  flag('float', 'power_law_sigma', 2.0,
    "A client's examples of each of its labels under power_law are in proportion to "
    'exp(sigma z).'),
  flag('float', 'noise_variance', 0.1,
    'Under the noisy partition, client i of 1 to M has Gaussian noise of this variance '
    'times i / M on its features.'),
  flag('list', 'label_swaps', [],
    'Pairs of labels that the groups of the label_swapped partition swap, as 1-7,3-5; '
    'the first group swaps none. Default: 1-2, 3-4 and so on, by --partition_groups.'),
  flag('list', 'rotations', [],
    'Degrees of each group of the rotated partition, counterclockwise, as 0,15,90; '
    'default: by --partition_groups.'),
  flag('enum', 'rotation_sampling', 'linear',
    'Interpolation of rotations by other than multiples of 90 degrees: linear, '
    'which extends the border, or nearest, with black corners.',
    enum_values=rotation.SAMPLINGS),
  flag('list', 'image_corruptions', [],
    'Corruption of the images of each group of the corrupted partition, of '
    f'{", ".join(image_corruptions.NAMES)}; default: the first of these, as many as '
    '--partition_groups.'),
  flag('integer', 'corruption_strength', 3,
    "Strength of --image_corruptions, 1 to 5, with CIFAR-10-C's constants."),
  flag('list', 'drift_rounds', [],
    'Rounds, such as 11,21, in which each client draws a new group at random. Its '
    'training and test examples are rotated, relabeled or corrupted as that group '
    'requires. For partitions with groups.'),
  flag('enum', 'drift_start', 'groups',
    'Groups before the first of --drift_rounds: those of the partition, or one '
    "group with all clients, as in FedDrift's settings.", enum_values=DRIFT_STARTS),
  flag('enum', 'cifar100_labels', 'fine',
    'Labels of CIFAR-100: 100 fine classes or 20 coarse ones.',
    enum_values=cifar.LABELS),
  flag('enum', 'emnist_split', 'byclass',
    'Split of --dataset=emnist: its classes and their balance.',
    enum_values=tuple(mnist.EMNIST_SPLITS)),
  flag('enum', 'background', 'white',
    "Background of FEMNIST's images; in the files it is white.",
    enum_values=('white', 'black')),
  flag('integer', 'text_stride', 1,
    'Characters between the starts of two examples of --dataset=shakespeare, '
    'except of LEAF; 1: all windows, as in LEAF.'),
  flag('enum', 'vocabulary', '',
    "Characters of a plain text: leaf, LEAF's 80 of English (the default of "
    '--dataset=shakespeare), or data, those of the training text, of any script (the '
    'default of text:FILE).', enum_values=('', *texts.VOCABULARIES)),
  flag('enum', 'ratings_by', 'lecturer',
    'Clients of --dataset=ratings: 1,128 lecturers or 2,972 students.',
    enum_values=ratings.BY),
  flag('string', 'tfds_name', '', 'Data set for --dataset=tfds.'),
  flag('string', 'hub_name', '', 'OWNER/NAME for --dataset=hub.'),
  flag('string', 'hub_config', '',
    'Configuration of --hub_name, where it has several.'),
  flag('string', 'hub_client_column', '',
    'Column that names the client of each example; default: the data has no clients.'),
  flag('string', 'hub_label_column', '',
    'Column of the labels, which may be names; default: the only column of class '
    'labels.'),
  flag('integer', 'hub_image_side', 0,
    'Width and height to which all images of --dataset=hub are resized; 0: images of '
    'which both sides exceed 84 are resized to 84.'),
  flag('string', 'label_column', '',
    'Column of the labels or targets of --dataset=table:FILE or of a data frame; '
    'default: y.'),
  flag('string', 'client_column', '',
    'Column of the client of each row of a table; default: client, if there is one.'),
  flag('string', 'cluster_column', '',
    'Column of the known cluster of each row of a table; default: cluster, if there is '
    'one.'),
  flag('string', 'split_column', '',
    'Column of a table that holds train and test, or 0 and 1; default: split, if there '
    'is one.'),
  flag('list', 'drop_columns', [], 'Columns of a table that are left out.'),
  flag('bool', 'standardize', False,
    'Whether each column of [T, F] features is brought to mean 0 and deviation 1, by '
    'the training examples of all clients; columns of 0 and 1 stay.'),
  flag('float', 'synthetic_alpha', 1.0,
    "Heterogeneity of the synthetic clients' models."),
  flag('float', 'synthetic_beta', 1.0, "Heterogeneity of their features."),
  flag('float', 'synthetic_noise', 0.0,
    'Noise in the targets of synthetic_linear, synthetic_mixture and synthetic_table, '
    'whose groups are --partition_groups.'),
  flag('integer', 'synthetic_features', 20, 'Features of synthetic_table.'),
  flag('integer', 'synthetic_classes', 4, 'Classes of synthetic_table.'),
  flag('enum', 'synthetic_difference', 'labels',
    'What groups of synthetic_table differ in: features (measured with other offsets), '
    'labels (permuted), or models (of labels given features).',
    enum_values=synthetic_table.DIFFERENCES),
  flag('float', 'synthetic_distance', 1.0,
    'How far groups of synthetic_table differ: the length of the offsets, or the share '
    "of a group's own model."),
  flag('float', 'synthetic_mix', 0.0,
    "Share of a client's examples in synthetic_table that are of other groups."),
  flag('integer', 'seed', 0, 'Seed of all random numbers.',
    lower_bound=0, upper_bound=2**31 - 1),
)  # fmt: skip
