"""One HTML page of runs: their table, curves, clients, clusters and costs.

Pages are of Vega-Lite figures and need no network. May import `analysis`.
"""

from fesem_jax.analysis.report.page import write_report

__all__ = ['write_report']
