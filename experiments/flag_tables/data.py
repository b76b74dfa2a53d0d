"""Flags of data: the data set, its task, the partition among clients, drift."""

from fesem_jax import partitions, tasks
from fesem_jax.data import sources

from .entry import flag

DATA = (
  flag('string', 'dataset', 'digits',
    "Data set, with options in brackets, such as 'emnist(split=digits)', "
    "'table(FILE, label=income, client=hospital)' or 'npz(FILE)'; "
    'MODULE:FUNCTION(OPTION=VALUE) calls a function of your own, which returns a '
    f'fesem_jax.data.Pool.\n{sources.help_text()}'),
  flag('enum', 'task', '',
    'Task: classification; regression of one number or several (RMSE, R2); sequence, '
    'the next token at every position (accuracy by token, perplexity); or multilabel, '
    'any number of labels for each example, of two classes one (exact match, F1, AUC). '
    "Default: the data set's task, mostly classification.",
    enum_values=('', *tasks.TASKS)),
  flag('string', 'data_dir', '',
    'Folder of the data files, which holds mnist/, qmnist/ and so on; default: the '
    'environment variable FESEM_DATA_DIR, else ./data.'),
  flag('bool', 'standardize', False,
    'Whether columns get mean 0 and standard deviation 1 over the training examples.'),
  flag('integer', 'seed', 0, 'Seed of all random numbers.',
    lower_bound=0, upper_bound=2**31 - 1),
)  # fmt: skip

PARTITION = (
  flag('string', 'partition', '',
    "How examples are dealt to clients, such as 'rotated(groups=4)+dirichlet(0.1)'. "
    'Default: natural where the data set has clients, cluster where it has known '
    f'clusters alone, else iid.\n{partitions.help_text()}'),
  flag('integer', 'num_clients', 0,
    'Clients M; 0: all natural clients, or 100.', lower_bound=0),
  flag('integer', 'examples_per_client', 0,
    'Training examples of each client (of natural clients: at most; where sizes or '
    'labels differ: on average); 0 deals all.', lower_bound=0),
  flag('enum', 'test_rows', 'random',
    "Which fifth of each client's rows is for testing, where the data set has no test "
    'examples: a random one, or the last in the order of the data.',
    enum_values=('random', 'last')),
  flag('list', 'drift_rounds', [],
    'Rounds, from 2, at which each client draws a random new group.'),
  flag('enum', 'drift_start', 'groups',
    "Groups until the first of --drift_rounds: those of the partition, or 'one' for "
    'all clients.', enum_values=('groups', 'one')),
)  # fmt: skip
