"""The flags of all experiment binaries: tables of names, defaults and help."""

from typing import Any, NamedTuple

from fesem_jax import algorithms, data, models, tasks
from fesem_jax.aggregation import robust
from fesem_jax.callbacks import loggers
from fesem_jax.cohorts import placement
from fesem_jax.core import local_training
from fesem_jax.data import cifar, corruption, partitions, ratings
from fesem_jax.data.partitions import image_corruptions, rotation
from fesem_jax.data.partitions.value import DEALT, DRIFT_STARTS, GROUPED
from fesem_jax.models import initializers
from fesem_jax.results import curves, device_profiles
from fesem_jax.training import augmentation, optimizers
from fesem_jax.utils import processes

from . import methods, schedules


class _Flag(NamedTuple):
  kind: str  # The X of absl's DEFINE_X.
  name: str
  default: Any
  help: str
  extra: dict[str, Any]  # Further arguments of DEFINE_X.


def _flag(kind: str, name: str, default: Any, text: str, **extra: Any) -> _Flag:
  return _Flag(kind, name, default, text, extra)


def _option(kind: str, name: str, text: str, **extra: Any) -> _Flag:
  """A flag of method options; without a value, each method has its own default."""
  defaults = [
    f'{method}: {methods.options(method)[name]}'
    for method in algorithms.METHODS
    if methods.options(method).get(name) is not None
  ]
  defaults += [
    f'{server}: {value}' for server, value in methods.server_defaults(name).items()
  ]
  return _Flag(kind, name, None, f'{text} Default: {", ".join(defaults)}.', extra)


_SOURCES = '; '.join(
  f'{name} ({", ".join(source.name for source in sources)})'
  for name, sources in data.DATASETS.items()
)

_DATA = (
  _flag('string', 'dataset', 'digits',
    f"Data set and its sources: {_SOURCES}; leaf:FOLDER for any data in LEAF's JSON "
    'layout; npz:FILE for arrays x, y, client and optionally split and cluster; '
    'MODULE:FUNCTION for data of your own, a function that returns such arrays.'),
  _flag('string', 'dataset_options', '',
    'NAME=VALUE,...: keyword-only arguments of --dataset=MODULE:FUNCTION.'),
  _flag('string', 'source', '',
    'Where the data set comes from, as listed for --dataset; default: the first one '
    'whose files are in --data_dir.'),
  _flag('enum', 'task', '',
    'Task: classification, regression of one number or several (RMSE, R2), or '
    'sequence, the next token at every position (accuracy by token, perplexity). '
    "Default: the data set's task, mostly classification.",
    enum_values=('', *tasks.TASKS)),
  _flag('string', 'data_dir', '',
    'Folder of the data files, which holds mnist/, qmnist/ and so on; default: the '
    'environment variable FESEM_DATA_DIR, else ./data.'),
  _flag('string', 'partition', None,
    f'How examples are dealt to clients: {", ".join(partitions.NAMES)}; or two of '
    f'them, as in rotated+dirichlet: groups ({", ".join(GROUPED)}), and labels or '
    f'sizes inside each group ({", ".join(DEALT)}); noisy goes with either. Default: '
    "'natural' where the data set has clients of its own, else 'iid'."),
  _flag('integer', 'num_clients', 0, 'Clients; 0: all natural clients, or 100.'),
  _flag('integer', 'examples_per_client', 0,
    'Training examples of each client; 0: all examples.'),
  _flag('integer', 'min_examples', 0,
    'Omits natural clients with fewer examples (training and test).'),
  _flag('integer', 'partition_groups', 4,
    'Groups of clients, the true clusters, in the partitions '
    f'{", ".join(GROUPED)}. Group g of rotated is turned by g * 360 / groups degrees, '
    'unless --rotations says it.'),
  _flag('bool', 'disjoint_groups', False,
    'Whether the groups share the images without overlap; otherwise each group has '
    'all images.'),
  _flag('float', 'dirichlet_alpha', 0.5,
    "Concentration of the dirichlet partition (clients' labels) and of the unequal one "
    '(their sizes, with i.i.d. labels); smaller is more skewed.'),
  _flag('integer', 'dirichlet_min_examples', 0,
    "If positive, the dirichlet partition is NIID-Bench's: a client above the mean "
    'size gets no examples of later classes, and the draw is repeated until each '
    'client has at least this many examples.'),
  _flag('integer', 'classes_per_client', 2,
    'Label shards of each client under the shards partition.'),
  _flag('integer', 'labels_per_client', 2,
    'Labels of each client under the labels partition (label i mod L and random '
    'others, as in NIID-Bench) and under power_law (labels i, i + 1, ..., as in '
    "FedProx's MNIST)."),
  _flag('float', 'lognormal_sigma', 0.3,
    "Clients' sizes under the lognormal partition are in proportion to exp(sigma z)."),
  _flag('float', 'power_law_sigma', 2.0,
    "A client's examples of each of its labels under power_law are in proportion to "
    'exp(sigma z).'),
  _flag('float', 'noise_variance', 0.1,
    'Under the noisy partition, client i of 1 to M has Gaussian noise of this variance '
    'times i / M on its features.'),
  _flag('list', 'label_swaps', [],
    'Pairs of labels that the groups of the label_swapped partition swap, as 1-7,3-5; '
    'the first group swaps none. Default: 1-2, 3-4 and so on, by --partition_groups.'),
  _flag('list', 'rotations', [],
    'Degrees of each group of the rotated partition, counterclockwise, as 0,15,90; '
    'default: by --partition_groups.'),
  _flag('enum', 'rotation_sampling', 'linear',
    'Interpolation of rotations by other than multiples of 90 degrees: linear, '
    'which extends the border, or nearest, with black corners.',
    enum_values=rotation.SAMPLINGS),
  _flag('list', 'image_corruptions', [],
    'What each group of the corrupted partition does to its images, of '
    f'{", ".join(image_corruptions.NAMES)}; default: the first of these, as many as '
    '--partition_groups.'),
  _flag('integer', 'corruption_strength', 3,
    "Strength of --image_corruptions, 1 to 5, with CIFAR-10-C's constants."),
  _flag('list', 'drift_rounds', [],
    'Rounds, such as 11,21, in which each client draws a new group at random. Its '
    'training and test examples are rotated, relabeled or corrupted as that group '
    'requires. For partitions with groups.'),
  _flag('enum', 'drift_start', 'groups',
    'Groups before the first of --drift_rounds: those of the partition, or one '
    "group with all clients, as in FedDrift's settings.", enum_values=DRIFT_STARTS),
  _flag('enum', 'cifar100_labels', 'fine',
    'Labels of CIFAR-100: 100 fine classes or 20 coarse ones.',
    enum_values=cifar.LABELS),
  _flag('enum', 'background', 'white',
    "Background of FEMNIST's images; in the files it is white.",
    enum_values=('white', 'black')),
  _flag('integer', 'text_stride', 1,
    'Characters between the starts of two examples of --dataset=shakespeare '
    '--source=text; 1: all windows, as in LEAF.'),
  _flag('enum', 'ratings_by', 'lecturer',
    'Clients of --dataset=ratings: 1,128 lecturers or 2,972 students.',
    enum_values=ratings.BY),
  _flag('string', 'tfds_name', '', 'Data set for --dataset=tfds.'),
  _flag('string', 'hub_name', '', 'OWNER/NAME for --dataset=hub.'),
  _flag('string', 'hub_client_column', '',
    'Column that names the client of each example; default: the data has no clients.'),
  _flag('string', 'hub_label_column', '',
    'Column of the labels; default: the only column of class labels.'),
  _flag('float', 'synthetic_alpha', 1.0, "How much synthetic clients' models differ."),
  _flag('float', 'synthetic_beta', 1.0, "How much synthetic clients' features differ."),
  _flag('float', 'synthetic_noise', 0.0,
    'Noise in the targets of synthetic_linear and synthetic_mixture, whose groups are '
    '--partition_groups.'),
  _flag('integer', 'seed', 0, 'Seed of all random numbers.',
    lower_bound=0, upper_bound=2**31 - 1),
)  # fmt: skip

_MODEL = (
  _flag('string', 'model', 'mlp',
    f'Model of every client, of {", ".join(models.NAMES)}; or MODULE:FUNCTION for one '
    'of your own: FUNCTION(example_shape, num_classes) returns a fesem_jax.Model.'),
  _flag('string', 'model_options', '',
    'NAME=VALUE,...: keyword-only arguments of --model=MODULE:FUNCTION.'),
  _flag('list', 'hidden', ['64'], "Widths of the mlp's hidden layers."),
  _flag('enum', 'initializer', 'flax',
    'Initialization of kernels and biases: as in Flax (kernels of variance 1 / '
    'inputs, biases 0) or as in PyTorch (both uniform, with a third of that '
    'variance). Published results may depend on it.',
    enum_values=tuple(initializers.INITIALIZERS)),
  _flag('string', 'init_from', '',
    'Source of the initial model: the workdir of a finished run (RUN, or RUN:K for '
    'center K of several), or a file .safetensors, .msgpack or .npz; default: '
    'random initialization.'),
  _flag('list', 'init_layers', [],
    'Layers taken from --init_from, by names or patterns such as stage0*; the '
    'others are initialized at random. Default: all, and the model must have the '
    'same layers.'),
  _flag('list', 'train_layers', [],
    'Layers that train, by names or patterns; the others keep their initial values, '
    'the same for all clients, and are neither averaged nor compared. Default: all.'),
  _flag('list', 'freeze_layers', [],
    'Layers that do not train, as an alternative to --train_layers.'),
)  # fmt: skip

_TRAINING = (
  _flag('enum', 'optimizer', 'sgd',
    "Local optimizer, with PyTorch's update rules: sgd; momentum, SGD with --momentum; "
    'adam; or adamw, whose --weight_decay is decoupled.',
    enum_values=optimizers.NAMES),
  _flag('float', 'momentum', 0.9, 'Momentum of --optimizer=momentum; 0: plain SGD.'),
  _flag('bool', 'nesterov', False, "Nesterov's form of --optimizer=momentum."),
  _flag('float', 'weight_decay', 0.0,
    'Adds --weight_decay times the parameters to the gradient before momentum and '
    'moments; with adamw, steps shrink the parameters by --learning_rate times it.'),
  _flag('float', 'adam_beta1', optimizers.ADAM.beta1,
    "Decay of adam's and adamw's mean of gradients."),
  _flag('float', 'adam_beta2', optimizers.ADAM.beta2,
    "Decay of adam's and adamw's mean of squared gradients."),
  _flag('float', 'adam_epsilon', optimizers.ADAM.epsilon,
    'Epsilon of adam and adamw, added to the root of the mean of squared gradients.'),
  _flag('float', 'clip_norm', 0.0,
    "Clips each step's gradient of a client, including penalty and correction, to "
    'this L2 norm over all its parameters; 0: no clipping.'),
  _flag('float', 'learning_rate', 0.1, 'Local learning rate.'),
  _flag('string', 'lr_schedule', 'constant',
    f'How the local learning rate goes on from --learning_rate over rounds: '
    f'{schedules.FORMS}; cosine falls to 0 over --rounds.'),
  _flag('string', 'local_lr_schedule', 'constant',
    'How the learning rate goes on over the local steps of each round, of the same '
    'forms with STEPS for ROUNDS; cosine falls to 0 over --local_steps. It multiplies '
    '--lr_schedule.'),
  _flag('integer', 'batch_size', 10,
    'Local batch size; 0: all examples of a client.'),
  _flag('integer', 'local_epochs', 2, 'Local epochs of a round.'),
  _flag('integer', 'local_steps', 0,
    'Local steps of a round; if positive, instead of --local_epochs.'),
  _flag('string', 'augment', '',
    f'What local steps do to images, of {augmentation.FORMS}, separated by commas, in '
    'the order given: a window of the image with PADDING zeros on each side; half of '
    'the images mirrored left to right; a square of zeros. Drawn for each client, step '
    'and image; off where models are measured or chosen by their losses.'),
  _flag('enum', 'precision', 'highest',
    'Precision of the products of local training on accelerators: highest, as float32, '
    'takes six passes of a TPU; high three, with about 16 bits of each factor; default '
    'one, with 8 bits. On a GPU, high and default are TensorFloat-32. Sums, distances '
    'between models, k-means, losses that clients choose by and measuring stay '
    'float32. No effect on a CPU, which always multiplies in float32.',
    enum_values=local_training.PRECISIONS),
)  # fmt: skip

_RUN = (
  _flag('integer', 'rounds', 20, 'Communication rounds.'),
  _flag('integer', 'clients_per_round', 0, 'Clients drawn for each round; 0: all.'),
  _flag('float', 'dropout_rate', 0.0,
    'Probability that a client of a round drops out, so its update never arrives.'),
  _flag('enum', 'corrupt', 'none',
    'Behavior of bad clients: train on labels L - 1 - y (label_flip), send the '
    'opposite of their change of the model (sign_flip), or noise of about the same '
    'length (noise).',
    enum_values=corruption.KINDS),
  _flag('float', 'corrupt_fraction', 0.0,
    'Fraction of the clients that are bad, drawn once from --seed; honest clients '
    'are also evaluated separately.', lower_bound=0.0, upper_bound=1.0),
  _flag('integer', 'finetune_epochs', 1,
    'Local epochs of fine-tuning, with --optimizer and without a penalty, before '
    'evaluation of the finetuned models.'),
  _flag('integer', 'eval_every', 1,
    'Rounds between evaluations; 0: after the last round only.'),
  _flag('enum', 'report', 'last',
    'Round that tables show: the last one, the best evaluated one, or the mean of '
    'the last ten evaluated rounds. summary.json contains all of them.',
    enum_values=tuple(curves.REPORTS)),
  _flag('list', 'target', [],
    'Micro accuracies such as 0.97,0.99 (of a regression: RMSE). summary.json and '
    'tables report the rounds until the best value so far, interpolated linearly '
    'between evaluated rounds, reaches each target.'),
  _flag('enum', 'evaluate_on', 'test',
    "validation: holds out a fifth of each client's training examples and evaluates "
    'on them; the test split is not used.', enum_values=('test', 'validation')),
  _flag('float', 'unseen_fraction', 0.0,
    'Fraction of the clients that do not take part in training; after the last '
    'round each of them is evaluated with the center that has the lowest loss on '
    'its training examples (not for methods with personal models or layers).',
    lower_bound=0.0, upper_bound=1.0),
  _flag('integer', 'patience', 0,
    'Stop after this many rounds in which no client changes its center and Eq. 6 '
    'changes by at most 0.1 %; 0: never.', lower_bound=0),
  _flag('integer', 'checkpoint_every', 10,
    'Rounds between checkpoints; 0: after the last round only.', lower_bound=0),
  _flag('bool', 'resume', True,
    'Resume the run in --workdir.'),
  _flag('integer', 'client_metrics_every', 0,
    'Record every client in rounds that this divides, in WORKDIR/history.parquet (.npz '
    'without pyarrow): its cluster, loss, figures where they are measured, steps, and '
    'whether it took part or failed. The report then shows who moved between clusters. '
    '0: never.', lower_bound=0),
  _flag('enum', 'device_profile', '',
    "Clients' devices and network, for the simulated seconds of each round, which "
    'takes as long as its slowest client; empty: none. '
    + ' '.join(
      f'{name}: {own.download / 1e6:g} MB/s down, {own.upload / 1e6:g} MB/s up, '
      f'{own.compute / 1e9:g} GFLOP/s, {own.overhead:g} s a round.'
      for name, own in device_profiles.PROFILES.items()
    ),
    enum_values=('', *device_profiles.PROFILES)),
  _flag('bool', 'tensorboard', False, 'The same as --log_to=tensorboard.'),
  _flag('list', 'log_to', [],
    'Where the numbers of each round go besides WORKDIR/metrics.jsonl, of '
    f'{", ".join(loggers.LOGGERS)}, separated by commas: WORKDIR/tensorboard/; '
    'WORKDIR/wandb/, offline unless WANDB_MODE is set; WORKDIR/mlflow.db unless '
    'MLFLOW_TRACKING_URI is set.'),
  _flag('list', 'callbacks', [],
    'MODULE:FUNCTION,...: functions of your own without arguments, each of which '
    'returns a fesem_jax.Callback, or a list of them, for every run.'),
  _flag('bool', 'quiet', False,
    'Print only the outcome, warnings and errors.'),
  _flag('bool', 'regret', False,
    'Compute the regret and margin of the assignments at every evaluation, from the '
    'losses of all K centers on all examples, for records, tables and clients.csv. '
    'Not for methods without clusters.'),
  _flag('bool', 'save_models', None,
    'Save the deployed models for fesem_jax.load_run and experiments.export: all '
    "centers, or every client's model. Default: if they take at most 1 GiB."),
)  # fmt: skip

_MACHINE = (
  _flag('string', 'clients_per_chunk', '0',
    'Clients trained side by side on a device; 0: chosen by model and device; auto: '
    'measures the fastest number. Results change by rounding errors only.'),
  _flag('enum', 'shared_start', 'auto',
    'Whether clients of a center, which start from the same weights, share its '
    'dense kernels and store only their changes: faster for large kernels and few '
    'local steps, which auto detects; with plain SGD only. Results change by '
    'rounding errors only.', enum_values=local_training.SHARED_START),
  _flag('integer', 'num_devices', 0,
    'Devices that clients are split over, those of all processes together; 0: all, on '
    'CPU one per core. Does not affect results, but see --data_placement.',
    upper_bound=1024),
  _flag('enum', 'data_placement', 'auto',
    'Where the examples lie. replicated: all on every device. sharded: those of a '
    "client on its device only, which takes less memory; then a round's clients "
    '(--clients_per_round) and samples of clients are drawn from each device alike, so '
    'that who is drawn depends on the number of devices, unless it divides 8. auto: '
    'sharded on accelerators of which the examples would take more than an eighth of '
    'the memory, or more than half with --clients_per_round; else replicated.',
    enum_values=placement.PLACEMENTS),
)  # fmt: skip

_PROCESSES = (
  _flag('string', 'coordinator_address', '',
    'HOST:PORT where process 0 waits for the others, which together run as one; each '
    'is given the same command with its own --process_id. auto: JAX finds the '
    'processes and their numbers by itself (TPU pods, Slurm, Open MPI). Empty: a '
    'single process. '
    'Results do not depend on the number of processes. Process 0 writes and prints; '
    '--workdir is a folder that all share. A process that misses at the start is '
    f'reported after {processes.MEETING_SECONDS} s, and when one dies, the others end '
    f'after about {processes.HEARTBEAT_SECONDS} s; the same command then goes on from '
    'the last checkpoint. On one machine, experiments.launch_local starts all.'),
  _flag('integer', 'process_id', -1,
    'Number of this process, from 0; -1: detected by --coordinator_address=auto.',
    lower_bound=-1, upper_bound=2**20),
  _flag('integer', 'num_processes', 0,
    'Number of processes of the run; 0: detected by --coordinator_address=auto.',
    lower_bound=0, upper_bound=2**20),
)  # fmt: skip

_METHOD = (
  _option('integer', 'num_clusters', 'Centers K.'),
  _option('float', 'prox_lambda', 'lambda of the distance penalty (Eq. 7).'),
  _option('enum', 'prox_weighting',
    'Weight of the penalty: lambda for every client, or lambda / (m alpha_i).',
    enum_values=('uniform', 'paper')),
  _option('float', 'prox_mu', 'mu of the proximal term mu / 2 |w - c|^2.'),
  _option('enum', 'weighting',
    'Weights of clients in a mean, and in Eq. 6 of the clustered methods.',
    enum_values=('uniform', 'by_examples')),
  _option('string', 'cluster_on',
    "Parameters that the E-step compares: 'all' or a layer's name."),
  _option('integer', 'loss_check_every',
    'Interval of rounds in which clients start from the center with the lowest '
    'training loss instead of their own; 0: never.'),
  _option('integer', 'recluster_every',
    'Interval of rounds in which clients train from the mean of the centers and are '
    'clustered again; it doubles whenever this confirms the clusters. 0: never.'),
  _option('float', 'temperature',
    'If positive, soft assignment: each client counts in the mean of every center, by '
    'exp(-(D_k / min D - 1) / temperature) of its squared distances D.'),
  _option('integer', 'max_age',
    'Clients that last took part more than this many rounds ago start from the '
    'center with the lowest training loss; 0: never.'),
  _option('bool', 'late_joins',
    'Only the --init_clients clients of the first clustering have a cluster; the '
    'others join one by training loss when they are first drawn.'),
  _option('bool', 'reseed_empty',
    'Move a center without clients to the client farthest from its own center.'),
  _option('enum', 'init_models',
    'Before the first clustering, clients train from one common random model, or '
    'each from a different random model. by_loss: no clustering; each client trains '
    'K random models and joins the one with the lowest training loss, as in the '
    'code of FedRC.',
    enum_values=('common', 'random', 'by_loss')),
  _option('bool', 'track_objective',
    'Also log Eq. 6 after the local step and after the E-step; experiments.figures '
    'plots the change by each step of a round.'),
  _option('integer', 'init_epochs', 'Local epochs before the first clustering.'),
  _option('float', 'init_tolerance',
    'Repeat --init_epochs, at most 10 times, until the mean training loss falls by '
    'less than this; 0: train once.'),
  _option('integer', 'init_restarts',
    'Restarts of the first clustering, or draws of the first centers.'),
  _option('enum', 'init_seeding',
    'Seeds of the first clustering: random clients or k-means++.',
    enum_values=('random', 'plusplus')),
  _option('integer', 'init_clients',
    'Random clients of the first clustering, or on which draws of the first centers '
    'are compared. FeSEM, 0: all, at most 4096 unless --client_state=stacked. PACFL, '
    '0: all; the others join the cluster of the client with the nearest subspace. '
    'FedGroup, 0: 20 for each group; the others join the nearest group.'),
  _option('integer', 'init_rounds',
    'Rounds before the draws of the first centers are compared.'),
  _option('enum', 'client_state',
    "Where clients' models (SCAFFOLD: control variates; FedDyn: gradients) are "
    'stored between rounds: stacked, on the devices; offloaded, in the memory of '
    'their host, from which each chunk of clients is copied (for accelerators; same '
    'results); streamed (FeSEM only), only the centers are stored.',
    enum_values=('stacked', 'offloaded', 'streamed')),
  _option('enum', 'server_optimizer',
    'Server update from the mean change of the clients (FedOpt): the mean, or a '
    'step of FedAvgM, FedAdagrad, FedAdam or FedYogi.',
    enum_values=tuple(methods.SERVER_OPTIMIZERS)),
  _option('float', 'server_learning_rate',
    'Learning rate of --server_optimizer; eta_g of SCAFFOLD; epsilon of Reptile; '
    'beta of pFedMe.'),
  _option('float', 'server_beta1', "Momentum of --server_optimizer, FedOpt's beta_1."),
  _option('float', 'server_beta2',
    "Second-moment decay of adam and yogi, FedOpt's beta_2."),
  _option('float', 'server_tau',
    'Tau of adagrad, adam and yogi in FedOpt.'),
  _option('float', 'ditto_lambda',
    'lambda of the proximal term lambda / 2 |v - w|^2 to the global model.'),
  _option('float', 'dyn_alpha',
    "alpha of FedDyn's penalty; a smaller value allows clients and server to move "
    'further.'),
  _option('float', 'moon_mu',
    "mu: weight of MOON's contrastive loss of representations."),
  _option('float', 'moon_temperature',
    "Temperature of MOON's contrastive loss, which divides cosines of "
    'representations.'),
  _option('string', 'features_before',
    "MOON: name of the layer whose input is an example's representation."),
  _option('float', 'soft_lambda',
    'lambda of the proximal term lambda / 2 sum_k u_ik |w - c_k|^2 to all centers.'),
  _option('integer', 'importance_every',
    "tau: rounds between two estimates of a client's weights for the centers."),
  _option('float', 'importance_floor',
    'sigma: the minimum weight of a center for a client.'),
  _option('integer', 'clients_per_center',
    'Clients of the round that are drawn for each center; 0: all clients count.'),
  _option('float', 'apfl_alpha',
    "Initial weight of a client's personal model in APFL's mixture with the global "
    'one.'),
  _option('bool', 'adapt_alpha',
    'Learn the mixing weight of each client in APFL at every local step; plain SGD '
    'only.'),
  _option('float', 'pfedme_lambda',
    'lambda of pFedMe, which keeps personal models near the local ones.'),
  _option('integer', 'inner_steps',
    'Gradient steps toward the personal model on each batch.'),
  _option('float', 'inner_learning_rate',
    "Learning rate of pFedMe's --inner_steps."),
  _option('float', 'adaptation_rate',
    'Learning rate of the single gradient step by which each client adapts the '
    'global model (Per-FedAvg).'),
  _option('enum', 'meta_gradient',
    "Per-FedAvg's gradient: first_order omits the Hessian; hessian_free "
    'approximates it by a difference of gradients.',
    enum_values=('first_order', 'hessian_free')),
  _option('float', 'hessian_delta',
    "Step length of Per-FedAvg's difference of gradients, in gradients."),
  _option('float', 'ala_rate',
    "Learning rate of FedALA's weights, which mix the global model's top layers "
    "into each client's model; 0: clients use the global layers."),
  _option('float', 'ala_sample',
    "Fraction of a client's batches on which FedALA's weights are learned in an "
    'epoch.'),
  _option('integer', 'ala_start_epochs',
    "Epochs in which a client learns FedALA's weights the first time; later rounds "
    'use one epoch.'),
  _option('float', 'amp_lambda',
    'lambda of FedAMP, which pulls each client to a mean of similar models with '
    'weight lambda / (2 alpha); 0: no pull.'),
  _option('float', 'amp_sigma',
    'FedAMP: squared distance of two models at which their attention decreases to 1 '
    '/ e.'),
  _option('float', 'amp_alpha',
    "alpha of FedAMP's message passing; 0: --amp_sigma over the number of other "
    'clients, the largest value for which no client can have a negative weight in '
    'its own mean.'),
  _option('float', 'l2gd_lambda',
    'lambda of L2GD, which pulls all models to their mean.'),
  _option('float', 'aggregation_probability',
    'Probability that a round of L2GD aggregates the models; in all other rounds, '
    'clients train locally.'),
  _option('list', 'head_layers',
    'Names of the layers of the head, which is personal (LG-FedAvg: shared; '
    'FedBABU: fixed; FedALA: mixed with the global one).'),
  _option('integer', 'head_epochs',
    'Local epochs of the head.'),
  _option('enum', 'first_assignment',
    "CLoVE's clusters of the first round: random ones, in which every model gets a "
    'client, or those of the losses of the random models.',
    enum_values=('random', 'losses')),
  _option('bool', 'choose_num_clusters',
    'CLoVE chooses between 2 and --num_clusters clusters in each round, by the '
    'silhouette score of the losses.'),
  _option('integer', 'cluster_every',
    'Interval of rounds in which CFL-GP clusters, from the first round on.'),
  _option('integer', 'cluster_updates',
    'Number of times that CFL-GP clusters; clients keep their clusters in later '
    'rounds.'),
  _option('integer', 'num_vectors',
    "p: number of first singular vectors of a client's examples of each label, "
    'which PACFL compares.'),
  _option('enum', 'proximity',
    'Measure of PACFL: the smallest principal angle between the subspaces of two '
    'clients, the sum of the angles between vectors of the same label and index, or '
    "the smallest angle between any two of their vectors, as in the authors' code.",
    enum_values=('smallest_angle', 'sum_of_angles', 'entries')),
  _option('float', 'angle_threshold',
    'PACFL merges clusters whose distance is at most this many degrees, and then '
    'others until --num_clusters remain; 0: until --num_clusters remain.'),
  _option('float', 'inter_group_rate',
    "FedGroup: weight of each other group's center of length 1 in a group after a "
    'round, relative to a weight of 1 for its own center; 0: no aggregation between '
    'groups.'),
  _option('float', 'stocfl_tau',
    'StoCFL merges clusters whose mean updates of a fixed random model have at '
    'least this cosine. A higher value gives more clusters.'),
  _option('integer', 'anchor_epochs',
    'Local epochs in which new clients of StoCFL train that fixed random model; 0: '
    'a gradient.'),
  _option('float', 'stocfl_lambda',
    "lambda of the proximal term lambda / 2 |v - w|^2 of StoCFL's clusters to the "
    'global model.'),
  _option('bool', 'same_cohort',
    'FedDANE: use one cohort for both passes.'),
  _option('float', 'straggler_fraction',
    'Probability that a client trains only 1 to E epochs in a round.'),
  _option('enum', 'variant',
    'IFCA, CFL-GP: average models, or one full-batch gradient step.',
    enum_values=('model', 'gradient')),
  _option('float', 'trim',
    'Fraction of a cluster that trimmed k-means omits.'),
  _option('enum', 'aggregation',
    'Aggregation of the models of a cluster, or of all clients: the mean; the '
    'median or trimmed mean of each coordinate; the mean of changes of bounded '
    'length; or the model closest to its nearest others (Krum). All but the mean '
    'weight clients uniformly.', enum_values=robust.AGGREGATIONS),
  _option('float', 'beta',
    'Fraction of clients that the trimmed mean drops at each end, or that Krum '
    'assumes to be bad.'),
  _option('float', 'norm_bound',
    'Largest L2 length of a change with --aggregation=norm_bound; longer changes '
    "are shortened. 0: the median of the cluster's lengths."),
  _option('integer', 'krum_models',
    'Number of models with the lowest scores that --aggregation=krum averages.'),
  _option('integer', 'warmup_rounds',
    'Rounds of FedAvg before FLUX clusters the clients.'),
  _option('float', 'eps_scaling',
    "Factor of the radius of FLUX's clustering; larger values give fewer clusters."),
  _option('string', 'latent_layer',
    'Dense layer whose inputs FLUX uses as features, such as dense0; empty: the '
    'last one.'),
  _option('integer', 'max_clusters',
    'Maximum number of clusters (fed_cluster, flux), of models in use (fed_drift), '
    'or of clusters at a time (stocfl). 0, except in fed_cluster: the number of '
    'clients.'),
  _option('float', 'eps1',
    'A cluster has converged if |mean update| < eps1 max |update|.'),
  _option('enum', 'eps1_scale',
    'relative: see --eps1; absolute: a cluster has converged if |mean update| < eps1.',
    enum_values=('relative', 'absolute')),
  _option('float', 'eps2',
    'The clients of a cluster have not converged if max |update| > eps2.'),
  _option('float', 'gamma',
    'Minimum separation of the parts of a split.'),
  _option('integer', 'min_size',
    'Clusters of this many clients or fewer are not split.'),
  _option('integer', 'min_rounds', 'Rounds before the first split.'),
  _option('enum', 'linkage',
    'FedCluster: rule of a split (minimax, complete, average). PACFL: distance of '
    'two clusters, by the average, the largest (complete) or the smallest (single) '
    'angle of their clients.',
    enum_values=('minimax', 'complete', 'average', 'single')),
  _option('integer', 'check_every',
    'Rounds between checks for a split (fed_cluster), or rounds of a time step, '
    'which starts with a check for drift (fed_drift).'),
  _option('float', 'drift_delta',
    'FedDrift: a client has drifted if its lowest loss rose by more than this since '
    "the last time step; two models merge if the loss of each on the other's "
    'clients exceeds the loss of the other model there by less than this.'),
  _option('bool', 'start_alone',
    'Whether each client has a separate model in the first time step of FedDrift, '
    'which finds groups that exist from the start; otherwise all clients share one '
    'model.'),
)  # fmt: skip

GROUPS = {
  'data': _DATA,
  'model': _MODEL,
  'training': _TRAINING,
  'run': _RUN,
  'machine': _MACHINE,
  'processes': _PROCESSES,
  'method': _METHOD,
}
