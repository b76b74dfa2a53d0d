"""The flags of all experiment binaries, and the configuration they give.

A configuration is a plain dict of flag name -> value that determines a run; it
is what `config.json` holds and what `run.run` takes.
"""

from typing import Any

from absl import flags

from fesem_jax import algorithms, data, models
from fesem_jax.data import partition

_OPTIMIZERS = ('sgd', 'momentum', 'adam')

# Flags that belong to a configuration, besides the options of the methods; the
# first of them choose the data.
_COMMON: list[str] = []
_DATA: list[str] = []


def _common(define, name: str, *args: Any, **kwargs: Any) -> None:
  define(name, *args, **kwargs)
  _COMMON.append(name)


def define_data() -> None:
  """Defines the flags that choose the data."""
  f = flags
  before = len(_COMMON)
  sources = {
    name: ', '.join(s.name for s in choices) for name, choices in data.DATASETS.items()
  }
  listed = '; '.join(f'{name} ({names})' for name, names in sources.items())
  _common(
    f.DEFINE_string,
    'dataset',
    'digits',
    f"Data set and its sources: {listed}; leaf:FOLDER for any data in LEAF's JSON "
    'layout; npz:FILE for arrays x, y, client and optionally split and cluster.',
  )
  _common(
    f.DEFINE_string,
    'source',
    '',
    'Where the data set comes from, as listed for --dataset; default: the first one '
    'whose files are in --data_dir.',
  )
  f.DEFINE_string(
    'data_dir',
    '',
    'Folder of the data files, which holds mnist/, '
    'qmnist/ and so on; default: the environment variable '
    'FESEM_DATA_DIR, else ./data.',
  )
  _common(
    f.DEFINE_enum,
    'partition',
    None,
    partition.NAMES,
    "How examples are dealt to clients; default: 'natural' where the data "
    "set has clients of its own, else 'iid'.",
  )
  _common(
    f.DEFINE_integer, 'num_clients', 0, 'Clients; 0: all natural clients, or 100.'
  )
  _common(
    f.DEFINE_integer,
    'examples_per_client',
    0,
    'Training examples of each client; 0: deal all there are.',
  )
  _common(
    f.DEFINE_integer,
    'min_examples',
    0,
    'Leave out natural clients with fewer examples (training and test).',
  )
  _common(
    f.DEFINE_integer,
    'partition_groups',
    4,
    'Groups of clients under rotated (turned by g * 360 / groups degrees) '
    'and label_permuted: the true clusters.',
  )
  _common(
    f.DEFINE_bool,
    'disjoint_groups',
    False,
    'Whether these groups share out the images, or each hold all of them.',
  )
  _common(
    f.DEFINE_float,
    'dirichlet_alpha',
    0.5,
    'Concentration of the dirichlet partition; smaller is more skewed.',
  )
  _common(
    f.DEFINE_integer,
    'classes_per_client',
    2,
    'Label shards of each client under the shards partition.',
  )
  _common(
    f.DEFINE_enum,
    'background',
    'white',
    ('white', 'black'),
    "Of FEMNIST's images; white is how the files have them.",
  )
  _common(f.DEFINE_string, 'tfds_name', '', 'Data set for --dataset=tfds.')
  _common(f.DEFINE_string, 'hub_name', '', 'OWNER/NAME for --dataset=hub.')
  _common(
    f.DEFINE_string,
    'hub_client_column',
    '',
    'Column that names the client of each example; default: the data has no clients.',
  )
  _common(
    f.DEFINE_string,
    'hub_label_column',
    '',
    'Column of the labels; default: the only one of class labels.',
  )
  _common(
    f.DEFINE_float, 'synthetic_alpha', 1.0, "How much synthetic clients' models differ."
  )
  _common(
    f.DEFINE_float,
    'synthetic_beta',
    1.0,
    "How much synthetic clients' features differ.",
  )
  _common(
    f.DEFINE_float,
    'synthetic_noise',
    0.0,
    'Noise in the targets of synthetic_linear and synthetic_mixture, whose groups are '
    '--partition_groups.',
  )
  _common(
    f.DEFINE_integer,
    'seed',
    0,
    'Decides everything random.',
    lower_bound=0,
    upper_bound=2**31 - 1,
  )
  _DATA.extend(_COMMON[before:])


def define() -> None:
  """Defines every flag that `run` and `compare` share."""
  f = flags
  define_data()

  # Model and local training.
  _common(f.DEFINE_enum, 'model', 'mlp', models.NAMES, 'Model of every client.')
  _common(f.DEFINE_list, 'hidden', ['64'], "Widths of the mlp's hidden layers.")
  _common(
    f.DEFINE_enum, 'optimizer', 'sgd', _OPTIMIZERS, 'Local optimizer; momentum is 0.9.'
  )
  _common(f.DEFINE_float, 'learning_rate', 0.1, 'Local learning rate.')
  _common(
    f.DEFINE_integer,
    'batch_size',
    10,
    "Local batch size; 0: all of a client's examples.",
  )
  _common(f.DEFINE_integer, 'local_epochs', 2, 'Local epochs of a round.')
  _common(
    f.DEFINE_integer,
    'local_steps',
    0,
    'Local steps of a round; if positive, instead of --local_epochs.',
  )

  # The run.
  _common(f.DEFINE_integer, 'rounds', 20, 'Communication rounds.')
  _common(
    f.DEFINE_integer, 'clients_per_round', 0, 'Clients drawn for each round; 0: all.'
  )
  _common(
    f.DEFINE_float,
    'dropout_rate',
    0.0,
    'Probability that a client of a round drops out and its update never arrives.',
  )
  _common(
    f.DEFINE_integer,
    'finetune_epochs',
    1,
    'Local epochs before the finetuned figures, with --optimizer and no penalty.',
  )
  _common(
    f.DEFINE_integer,
    'eval_every',
    1,
    'Rounds between evaluations; 0: after the last round only.',
  )
  _common(
    f.DEFINE_enum,
    'evaluate_on',
    'test',
    ('test', 'validation'),
    "validation: hold out a fifth of each client's training examples and measure on "
    'these; the test split is not looked at.',
  )
  _common(
    f.DEFINE_float,
    'unseen_fraction',
    0.0,
    'Share of the clients that take no part; after the last round each is measured '
    'with the center of least loss on its training examples (not for non_fed).',
    lower_bound=0.0,
    upper_bound=1.0,
  )
  _common(
    f.DEFINE_integer,
    'patience',
    0,
    'Stop after this many rounds without a client that moves and with Eq. 6 '
    'steady to 0.1 %; 0: never.',
    lower_bound=0,
  )
  f.DEFINE_integer(
    'checkpoint_every',
    10,
    'Rounds between checkpoints; 0: after the last round only.',
    lower_bound=0,
  )
  f.DEFINE_bool('resume', True, 'Continue the run that --workdir holds.')
  f.DEFINE_bool('tensorboard', False, 'Write scalars to WORKDIR/tensorboard/ too.')

  # The machine: speed only, never results.
  f.DEFINE_string(
    'clients_per_chunk',
    '0',
    'Clients trained side by side on a device; 0: by the model and '
    'the device; auto: measure which number is fastest. Results do not change beyond '
    'rounding.',
  )
  f.DEFINE_integer(
    'num_devices',
    0,
    'Devices that clients are split over; 0: all, on CPU one per '
    'core. Does not affect results.',
    upper_bound=1024,
  )

  # Options of the methods; None is the method's own default.
  option = lambda define, name, text, **kwargs: define(
    name, None, help=_help(name, text), **kwargs
  )
  enum = lambda name, values, text: option(
    f.DEFINE_enum, name, text, enum_values=values
  )
  option(f.DEFINE_integer, 'num_clusters', 'Centers K.')
  option(f.DEFINE_float, 'prox_lambda', 'lambda of the distance penalty (Eq. 7).')
  enum(
    'prox_weighting',
    ('uniform', 'paper'),
    'lambda for every client, or lambda / (m alpha_i).',
  )
  option(f.DEFINE_float, 'prox_mu', 'mu of the proximal term mu / 2 |w - c|^2.')
  enum('weighting', ('uniform', 'by_examples'), 'Weights of clients in a mean.')
  option(
    f.DEFINE_string,
    'cluster_on',
    "Parameters that the E-step compares: 'all' or a layer's name.",
  )
  option(
    f.DEFINE_integer,
    'loss_check_every',
    'In every so many rounds, clients start from the center of least loss; 0: never.',
  )
  option(
    f.DEFINE_bool,
    'reseed_empty',
    'Move a center without clients to the client farthest from its own.',
  )
  option(f.DEFINE_integer, 'init_epochs', 'Local epochs before the first clustering.')
  option(
    f.DEFINE_float,
    'init_tolerance',
    'Repeat --init_epochs, at most 10 times, until the mean training loss falls by '
    'less than this; 0: train once.',
  )
  option(
    f.DEFINE_integer,
    'init_restarts',
    'Restarts of the first clustering, or draws of the first centers.',
  )
  enum(
    'init_seeding',
    ('random', 'plusplus'),
    'Seeds of the first clustering: random clients or k-means++.',
  )
  option(
    f.DEFINE_integer,
    'init_clients',
    'Random clients that the start looks at; FeSEM, 0: all, up to 4096.',
  )
  option(
    f.DEFINE_integer,
    'init_rounds',
    'Rounds before draws of first centers are compared.',
  )
  enum(
    'client_state',
    ('stacked', 'streamed'),
    "Keep all clients' models from round to round, or only centers.",
  )
  option(f.DEFINE_float, 'server_learning_rate', 'epsilon of Reptile.')
  option(f.DEFINE_bool, 'same_cohort', 'One cohort for both passes of FedDANE.')
  option(
    f.DEFINE_float,
    'straggler_fraction',
    'Probability that a client runs only 1 to E epochs in a round.',
  )
  enum(
    'variant',
    ('model', 'gradient'),
    'IFCA: average models, or one full-batch gradient step.',
  )
  option(f.DEFINE_float, 'trim', 'Share of a cluster that k-means leaves out.')
  enum('aggregation', ('trimmed_mean', 'median'), 'Robust mean of each coordinate.')
  option(f.DEFINE_float, 'beta', 'Share that the trimmed mean drops at each end.')
  option(f.DEFINE_integer, 'max_clusters', 'Most clusters that splits may make.')
  option(
    f.DEFINE_float,
    'eps1',
    'A cluster has converged if |mean update| < eps1 max |update|.',
  )
  enum(
    'eps1_scale',
    ('relative', 'absolute'),
    'absolute: a cluster has converged if |mean update| < eps1.',
  )
  option(f.DEFINE_float, 'eps2', 'Its clients have not if max |update| > eps2.')
  option(f.DEFINE_float, 'gamma', 'Least separation of the parts of a split.')
  option(f.DEFINE_integer, 'min_size', 'Clusters this small are not split.')
  option(f.DEFINE_integer, 'min_rounds', 'Rounds before the first split.')
  option(f.DEFINE_integer, 'check_every', 'Rounds between checks for a split.')
  enum('linkage', ('minimax', 'complete', 'average'), 'How a cluster is parted.')


def _help(option: str, text: str) -> str:
  """The text with the methods that have the option and their defaults."""
  defaults = [
    f'{name}: {algorithms.options(name)[option]}'
    for name in algorithms.METHODS
    if option in algorithms.options(name)
  ]
  return f'{text} Default: {", ".join(defaults)}.'


def method_options() -> list[str]:
  """Names of all options that some method has."""
  names = dict.fromkeys(o for m in algorithms.METHODS for o in algorithms.options(m))
  return list(names)


def chosen_options() -> dict[str, Any]:
  """The method options that were given on the command line."""
  values = {name: flags.FLAGS[name].value for name in method_options()}
  return {name: value for name, value in values.items() if value is not None}


def common() -> dict[str, Any]:
  """The part of a configuration that does not depend on the method."""
  return {name: flags.FLAGS[name].value for name in _COMMON}


def data_choice(config: dict[str, Any] | None = None) -> dict[str, Any]:
  """Arguments of `data.load`, from a configuration or from the flags."""
  values = {n: flags.FLAGS[n].value if config is None else config[n] for n in _DATA}
  return values | {'partition': values['partition'] or ''}


def machine() -> dict[str, Any]:
  """Flags that decide where and how fast a run happens, never its results."""
  names = ('data_dir', 'checkpoint_every', 'resume', 'tensorboard',
           'clients_per_chunk', 'num_devices')  # fmt: skip
  return {name: flags.FLAGS[name].value for name in names}


def configuration(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
  """A whole configuration, the method's defaults filled in.

  Raises:
    UserError: on an option that the method does not have.
  """
  algorithms.check_options(algorithm, options)
  return {
    **common(),
    'algorithm': algorithm,
    **algorithms.options(algorithm),
    **options,
  }
