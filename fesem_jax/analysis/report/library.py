"""The JavaScript that draws the figures of a page: Vega, Vega-Lite and Vega-Embed."""

import gzip
from importlib import metadata

from absl import logging

from fesem_jax.utils import progress_lines, user_cache
from fesem_jax.utils.atomic_files import replacing
from fesem_jax.utils.errors import UserError
from fesem_jax.utils.safe_files import reading

_GLOBALS = 'window.vegaEmbed = vegaEmbed;'


def check() -> None:
  """Raises `UserError` without the packages that a page needs."""
  try:
    import markdown_it  # noqa: F401 - optional dependencies.
    import vl_convert  # noqa: F401
  except ImportError as e:
    raise UserError(f"A report needs {e.name}: pip install 'fesem_jax[report]'.") from e


def compressed() -> bytes:
  """The library, gzipped.

  To put it together takes seconds; each user of a machine does it once for each version
  of `vl_convert`.
  """
  import vl_convert  # An optional dependency.

  version = metadata.version('vl-convert-python')
  path = user_cache.folder() / 'report' / f'vega_{version}.js.gz'
  try:
    with reading('The cache folder'):
      user_cache.make_private(path.parent)
      if path.exists():
        return _whole(path.read_bytes())
  except UserError as e:
    logging.warning('%s The figure library is rebuilt.', e)
  with progress_lines.waiting_for('building the figure library'):
    text = vl_convert.javascript_bundle(_GLOBALS)
  content = gzip.compress(text.encode(), 9, mtime=0)
  try:
    with reading('The cache folder'), replacing(path) as file:
      file.write(content)
  except UserError as e:
    logging.warning('%s The next report rebuilds the figure library.', e)
  return content


def _whole(held: bytes) -> bytes:
  """Compressed bytes that are sound; raises where they are not."""
  gzip.decompress(held)
  return held
