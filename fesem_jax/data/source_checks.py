"""Checks of the options of data sets."""

from fesem_jax.data import (
  cifar,
  leaf,
  mnist,
  pictures,
  synthetic_table,
  texts,
)
from fesem_jax.data.options import Options
from fesem_jax.data.partitions.groups import check_groups
from fesem_jax.data.sources import DATASETS, PREFIXES
from fesem_jax.utils.errors import (
  UserError,
  argument,
  check_at_least,
  check_between,
  check_share,
)
from fesem_jax.utils.ranges import check_choice

_MAX_WIDTH = 100_000  # Features or classes of a generated table.
_MAX_SIDE = 1024  # Of images that models train on.

# Far beyond any use; features of much larger ones are not finite.
_MAX_DEVIATION = 10**6

PLANTED = ('synthetic_linear', 'synthetic_mixture', 'synthetic_table')


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
  named = argument('name', name)
  prefix, colon, place = name.partition(':')
  if own or (colon and prefix in PREFIXES and place):
    known: tuple[str, ...] = ()
  elif name in DATASETS:
    known = tuple(s.name for s in DATASETS[name])
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
  check_choice('leaf_users', options.leaf_users, leaf.USERS)
  check_choice('background', options.background, leaf.BACKGROUNDS)
  check_choice('vocabulary', options.vocabulary, ('', *texts.VOCABULARIES))
  check_choice('emnist_split', options.emnist_split, tuple(mnist.EMNIST_SPLITS))
  check_choice('cifar100_labels', options.cifar100_labels, cifar.LABELS)
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
