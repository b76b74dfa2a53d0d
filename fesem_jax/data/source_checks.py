"""Checks of the options of data sets."""

from collections.abc import Mapping

from fesem_jax.data import (
  cifar,
  leaf,
  mnist,
  pictures,
  ratings,
  synthetic_table,
  texts,
)
from fesem_jax.data.options import Options
from fesem_jax.data.partitions.groups import check_groups
from fesem_jax.data.sources import DATASETS, PREFIXES
from fesem_jax.utils.display import kind_of
from fesem_jax.utils.errors import (
  UserError,
  argument,
  check_at_least,
  check_between,
  check_choice,
  check_share,
)

_MAX_WIDTH = 100_000  # Features or classes of a generated table.
_MAX_SIDE = 1024  # Of images that models train on.

# Far beyond any use; features of much larger ones are not finite.
_MAX_DEVIATION = 10**6

PLANTED = ('synthetic_linear', 'synthetic_mixture', 'synthetic_table')

_COLUMNS = (
  'label_column', 'client_column', 'cluster_column', 'split_column', 'drop_columns',
)  # fmt: skip

_APPLY: Mapping[str, tuple[str, ...]] = {
  'cifar100': ('cifar100_labels',),
  'emnist': ('emnist_split',),
  'ratings': ('ratings_by',),
  'leaf': ('leaf_users',),
  'celeba': ('leaf_users',),
  'shakespeare': ('text_stride', 'vocabulary', 'leaf_users'),
  'text': ('text_stride', 'vocabulary'),
  'femnist': ('background', 'leaf_users'),
  'tfds': ('tfds_name',),
  'hub': (
    'hub_name',
    'hub_client_column',
    'hub_label_column',
    'hub_image_side',
    'hub_config',
  ),
  'images': ('image_side', 'image_groups'),
  'table': _COLUMNS,
  'synthetic': ('synthetic_alpha', 'synthetic_beta'),
  'synthetic_linear': ('synthetic_noise',),
  'synthetic_mixture': ('synthetic_noise',),
  'synthetic_table': (
    'synthetic_noise',
    'synthetic_features',
    'synthetic_classes',
    'synthetic_difference',
    'synthetic_distance',
    'synthetic_mix',
  ),
}


def check(
  name: str,
  source: str,
  options: Options,
  num_clients: int,
  num_groups: int,
  own: bool = False,
) -> None:
  """Raises `UserError` on an unknown data set or source, or an option it lacks.

  `name` and `source` are those of `load`, `options` those of single data sets, and
  `num_clients` and the planted `num_groups` those of generated data. If `own`, the data
  is the caller's own, whatever its name.
  """
  if not isinstance(name, str):
    raise UserError(
      f'`name` is {kind_of(name)}, but names a data set; give your own data by '
      "`arrays`, as load('mine', arrays=...)."
    )
  named = argument('name', name)
  prefix, colon, place = name.partition(':')
  if own or (colon and prefix in PREFIXES and place):
    known: tuple[str, ...] = ()
    applying = _COLUMNS if own else _APPLY.get(prefix, ())
  elif name in DATASETS:
    known, applying = tuple(s.name for s in DATASETS[name]), _APPLY.get(name, ())
  else:
    raise UserError(
      f'{named} is unknown; choose one of {", ".join(DATASETS)}, leaf:FOLDER, '
      'npz:FILE, table:FILE, images:FOLDER, text:FILE, pfllib:FOLDER or '
      'flbench:FOLDER.'
    )
  if source and source not in known:
    choices = f'one of {", ".join(known)}' if known else 'none'
    raise UserError(
      f'{argument("source", source)} does not exist for {named}: {choices}.'
    )
  for option, default in Options()._asdict().items():
    given = getattr(options, option)
    if isinstance(given, str) and isinstance(default, tuple):
      raise UserError(f'{argument(option, given)} must be a list, not a text.')
    if option == 'standardize':  # For all tables.
      if not isinstance(given, bool):
        raise UserError(f'{argument(option, given)} must be true or false.')
      continue
    if given not in (default, []) and option not in applying:
      known_for = ', '.join(
        name for name, options in _APPLY.items() if option in options
      )
      raise UserError(
        f'`{option}` does not apply to {named}, but to {known_for}; leave it out.'
      )
  check_choice('leaf_users', options.leaf_users, leaf.USERS)
  check_choice('background', options.background, leaf.BACKGROUNDS)
  check_choice('vocabulary', options.vocabulary, ('', *texts.VOCABULARIES))
  check_choice('emnist_split', options.emnist_split, tuple(mnist.EMNIST_SPLITS))
  check_choice('cifar100_labels', options.cifar100_labels, cifar.LABELS)
  check_choice('ratings_by', options.ratings_by, ratings.BY)
  check_at_least(1, text_stride=options.text_stride)
  check_between(0, _MAX_SIDE, hub_image_side=options.hub_image_side)
  check_between(0, _MAX_SIDE, image_side=options.image_side)
  check_choice('image_groups', options.image_groups, pictures.GROUPS)
  check_choice(
    'synthetic_difference', options.synthetic_difference, synthetic_table.DIFFERENCES
  )
  check_between(1, _MAX_WIDTH, synthetic_features=options.synthetic_features)
  check_between(2, _MAX_WIDTH, synthetic_classes=options.synthetic_classes)
  check_share(synthetic_mix=options.synthetic_mix)
  for option in (
    'synthetic_alpha', 'synthetic_beta', 'synthetic_noise', 'synthetic_distance',
  ):  # fmt: skip
    if not 0 <= getattr(options, option) <= _MAX_DEVIATION:
      raise UserError(
        f'`{option}={getattr(options, option)}` must be at least 0, and at most '
        f'{_MAX_DEVIATION}.'
      )
  if name in PLANTED:
    check_groups(num_clients, num_groups)
