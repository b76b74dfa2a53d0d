"""What setup.cfg cannot say: folders beside the library, the index's page, the SBOM."""

import configparser
import pathlib
import re
import shutil

from setuptools import find_packages, setup

try:
  from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # Older than what pyproject.toml builds with: nothing is built.
  bdist_wheel = object

ROOT = pathlib.Path(__file__).parent


def long_description() -> str:
  """README.md for the package index, which holds none of the files it links to.

  Links to files lead to the `url` of setup.cfg. Where there is none, their text stays
  and images are left out.
  """
  config = configparser.ConfigParser()
  config.read(ROOT / 'setup.cfg')
  url = config.get('metadata', 'url', fallback='').rstrip('/')
  text = (ROOT / 'README.md').read_text(encoding='utf-8')
  text = re.sub(r'<!--.*?-->\n?', '', text, flags=re.DOTALL)
  image, link = r'!\[([^]]*)\]\((?!\w+:)([^)]+)\)', r'\[([^]]*)\]\((?!\w+:|#)([^)]+)\)'
  if not url:
    return re.sub(link, r'\1', re.sub(image + r'\n*', '', text))
  text = re.sub(image, rf'![\1]({url}/raw/main/\2)', text)
  return re.sub(link, rf'[\1]({url}/blob/main/\2)', text)


class WithBill(bdist_wheel):
  """A wheel whose metadata list what the package needs (PEP 770)."""

  def write_wheelfile(self, wheelfile_base: str, *args, **kwargs) -> None:
    """Writes WHEEL, and the bill of materials beside it."""
    super().write_wheelfile(wheelfile_base, *args, **kwargs)
    folder = pathlib.Path(wheelfile_base) / 'sboms'
    folder.mkdir(exist_ok=True)
    shutil.copy(ROOT / 'sbom.cdx.json', folder / 'fesem_jax.cdx.json')


setup(
  cmdclass={'bdist_wheel': WithBill},
  packages=[
    *find_packages(include=['fesem_jax*']),
    *(
      f'fesem_jax.{name}'
      for name in find_packages(include=['experiments*', 'reproductions*'])
    ),
  ],
  # The wheel holds these folders inside of the package.
  package_dir={f'fesem_jax.{name}': name for name in ('experiments', 'reproductions')},
  long_description=long_description(),
  long_description_content_type='text/markdown',
)
