"""Local training of a cohort: one compiled loop for every method.

May import `data`, `models`, `cohorts`, `core` and `utils`.
"""
