"""Pictures as arrays, and folders of pictures by class."""

import contextlib
import io
import pathlib
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fesem_jax.data import cache
from fesem_jax.data.pool import Pool
from fesem_jax.data.table_files import SPLITS
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import files_of, reading
from fesem_jax.utils.stored_rows import Rows

SIDE = 84  # Of larger pictures, unless another is asked for.
GROUPS = ('clients', 'clusters')

_MODES = ('1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'CMYK')
_SUFFIXES = ('.png', '.jpg', '.jpeg', '.bmp', '.webp', '.tif', '.tiff', '.ppm', '.pgm')
_NO_NAMES = ('images', 'imgs')  # Of folders that only hold the pictures.


def decode(raw: bytes, where: str, side: int) -> np.ndarray:
  """[H, W] of a gray picture or [H, W, 3] uint8, from the bytes of its file.

  It is turned as its EXIF orientation says, and resized to `side` by `side`; 0 resizes
  one of which both sides exceed `SIDE` to this. Raises `UserError`, naming `where`, on
  more than 8 bits or too many pixels, and what Pillow raises on damage.
  """
  from PIL import Image

  picture: Image.Image = Image.open(io.BytesIO(raw))
  if picture.mode not in _MODES:
    raise UserError(f'{where} has mode {picture.mode}; 8-bit images are needed.')
  picture = _upright(picture)
  gray = picture.mode in ('1', 'L', 'LA')
  picture = picture.convert('L' if gray else 'RGB')
  if side or min(picture.size) > SIDE:
    side = side or SIDE
    picture = picture.resize((side, side), Image.Resampling.BICUBIC)
  return np.asarray(picture)


def _upright(picture: Any) -> Any:
  """A picture turned as its camera was; unreadable EXIF data are left alone."""
  from PIL import ImageOps

  with contextlib.suppress(KeyError, SyntaxError, TypeError, ValueError, struct.error):
    return ImageOps.exif_transpose(picture)
  return picture


def stacked(pictures: Sequence[np.ndarray], where: str, option: str) -> np.ndarray:
  """[T, H, W(, 3)] uint8; gray pictures become colored ones if any is colored.

  Raises `UserError`, which names `where` and the `option` that resizes, if pictures
  have other sizes.
  """
  for i, picture in enumerate(pictures):
    if picture.shape[:2] != pictures[0].shape[:2]:
      raise UserError(
        f'{where}: image {i} has shape {picture.shape}, the first one '
        f'{pictures[0].shape}; give `{option}`, e.g. {SIDE}, to which all are resized.'
      )
  if len({picture.ndim for picture in pictures}) > 1:
    pictures = [x if x.ndim == 3 else np.stack([x] * 3, axis=-1) for x in pictures]
  return np.stack(pictures)


class _Place(NamedTuple):
  """Where a picture lies in a folder of them."""

  split: str  # 'train' or 'test'; '' where folders do not tell
  group: str  # name of the client or cluster; '' where folders do not tell
  label: str  # name of the class
  path: pathlib.Path


def load_folder(folder: pathlib.Path, side: int, groups: str) -> Pool:
  """Pictures in a folder for each class, as torchvision's `ImageFolder` reads them.

  FOLDER/CLASS/*.png are to be dealt; in FOLDER/GROUP/CLASS/*.png, groups are clients,
  or, if `groups` is 'clusters', known clusters. A folder train and a folder test may be
  above or below that of the group. `side` is that of `decode`. Raises a `UserError`
  that names the file at fault.
  """
  places = _places(folder)
  tested = np.array([place.split == 'test' for place in places])
  names, owners = np.unique([p.group for p in places], return_inverse=True)
  classes, labels = np.unique([p.label for p in places], return_inverse=True)
  y = labels.astype(np.int32)

  def build() -> dict[str, Any]:
    pictures = [_read(place.path, side) for place in places]
    x = stacked(pictures, str(folder), 'image_side')
    return {'x': x[~tested], 'test_x': x[tested]}

  def key() -> str:
    stats = [(str(p.path), p.path.stat()) for p in places]
    listing = [(path, *cache.state(stat)) for path, stat in stats]
    return cache.digest([], f'images 2 {side} {listing}')

  size = cache.total_size(place.path for place in places)
  held: dict[str, Rows] = cache.cached(
    folder, f'images {side}', key, size, build, stored=('x', 'test_x')
  )
  pool = Pool(
    held['x'], y[~tested], len(classes), 1 / 255, class_names=tuple(classes.tolist())
  )
  if tested.any():
    pool = pool._replace(test_x=held['test_x'], test_y=y[tested])
  if not places[0].group:
    return pool
  known = groups == 'clusters'
  return pool._replace(
    client=owners[~tested],
    test_client=owners[tested] if tested.any() else None,
    names=names,
    clusters=names if known else None,
    of_clusters=known,
  )


def _places(folder: pathlib.Path) -> list[_Place]:
  """The pictures of a folder, sorted by their paths."""
  paths = [p for p in files_of(folder) if p.suffix.lower() in _SUFFIXES]
  places = []
  for path in paths:
    *above, _ = path.relative_to(folder).parts
    above = [name for name in above if name.lower() not in _NO_NAMES]
    splits = [i for i, name in enumerate(above) if name.lower() in SPLITS]
    split = SPLITS[above.pop(splits[0]).lower()] if splits else ''
    if len(above) not in (1, 2):
      raise UserError(
        f'{path} is not in a folder for each class; put all images of {folder} into '
        'CLASS/ or CLIENT/CLASS/, or these into train/ and test/.'
      )
    places.append(_Place(split, above[0] if len(above) == 2 else '', above[-1], path))
  for i, what in ((0, 'a folder train or test'), (1, 'a folder of a client')):
    apart = {bool(place[i]) for place in places}
    if len(apart) > 1:
      of, other = (
        next(p.path for p in places if bool(p[i]) is has) for has in (True, False)
      )
      raise UserError(
        f'{of} is in {what}, {other} is not; put all images into such ones.'
      )
  return places


def _read(path: pathlib.Path, side: int) -> np.ndarray:
  with reading(path):
    return decode(path.read_bytes(), str(path), side)
