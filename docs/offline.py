"""MkDocs hook: search in pages opened from a folder asks no other host for its shim.

Browsers start no workers from files; Material's offline plugin loads what takes their
place, iframe-worker, from unpkg.com.
"""

from typing import Any

_SHIM = 'https://unpkg.com/iframe-worker/shim'
_OURS = 'javascripts/iframe-worker.js'


def on_post_page(output: str, page: Any, config: Any) -> str:
  """The page, with the shim of the manual."""
  del config
  return output.replace(_SHIM, '../' * page.url.count('/') + _OURS)


def on_post_template(output: str, template_name: str, config: Any) -> str:
  """The page of what is not found, likewise."""
  del template_name, config
  return output.replace(_SHIM, _OURS)
