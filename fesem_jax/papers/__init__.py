"""Methods, data and models of published experiments, for `experiments.reproduce`.

Each module has the methods, data and models of one paper, as functions that
--algorithm, --dataset and --model name: `--dataset=fesem_jax.papers.fed_em:mixture`.
Data are arrays as `data.arrays` describes them. Clients have numbers as texts: recorded
results are of clients in the order of texts.

May import `core`, `data`, `models`, `cohorts`, `algorithms`, `callbacks`, `tasks` and
`utils`.
"""
