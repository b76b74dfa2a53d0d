"""Published experiments, computed again: recipes, a ledger, a page.

`reproductions.reproduce` carries out papers/*.toml. A module that is called like a
recipe has the methods, data and models of that paper, as functions that --algorithm,
--dataset and --model name: `--dataset=reproductions.fed_em:mixture`. Data are
arguments of `data.from_arrays`. Clients have numbers as texts: recorded results are of
clients in the order of texts.
"""
