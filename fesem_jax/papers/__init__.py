"""Data and models of published experiments that `experiments.reproduce` runs again.

Each module has the generators of one paper, as functions that --dataset and --model
name: `--dataset=fesem_jax.papers.fed_em:mixture`. They return arrays as `data.arrays`
describes them.

May import `core`, `data`, `models`, `callbacks`, `tasks` and `utils`.
"""
