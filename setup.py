"""The wheel holds the folder `experiments` as the package `fesem_jax.experiments`."""

from setuptools import find_packages, setup

setup(
  packages=[*find_packages(include=['fesem_jax*']), 'fesem_jax.experiments'],
  package_dir={'fesem_jax.experiments': 'experiments'},
)
