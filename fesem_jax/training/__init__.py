"""Local training of a cohort: one compiled loop for every method.

May import `data`, `models`, `core` and `utils`.
"""
