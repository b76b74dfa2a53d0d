"""One HTML page of runs: their table, curves, clients, clusters and settings.

Pages need no network. May import `analysis` and `plots`.
"""

from fesem_jax.analysis.report.page import write_report

__all__ = ['write_report']
