"""A release: one version everywhere, and a page for the package index."""

import pathlib
import re
import runpy

import pytest
import setuptools

import fesem_jax

ROOT = pathlib.Path(__file__).parents[2]


def test_one_version_everywhere():
  version = re.escape(fesem_jax.__version__)
  assert re.search(rf'^version: {version}$', (ROOT / 'CITATION.cff').read_text(), re.M)
  assert f'version = {{{fesem_jax.__version__}}}' in (ROOT / 'docs/faq.md').read_text()
  [newest, *_] = re.findall(r'^## (\S+)', (ROOT / 'CHANGELOG.md').read_text(), re.M)
  assert newest in ('Unreleased', fesem_jax.__version__)


@pytest.fixture
def built(monkeypatch):
  """What setup.py hands to setuptools."""
  settings = {}
  monkeypatch.setattr(setuptools, 'setup', settings.update)
  module = runpy.run_path(str(ROOT / 'setup.py'))
  return settings | {'module': module}


def test_the_index_page_has_no_links_to_files(built):
  text = built['long_description']
  assert text.startswith('# fesem_jax\n')
  links = re.findall(r'\]\(([^)]+)\)', text)
  assert all(link.startswith(('http://', 'https://', '#')) for link in links)
  assert '<!--' not in text
  assert re.search(r'^\| fesem\(4\) \| \d+\.\d \|', text, re.M)
