"""Aggregation on the server: robust means and server optimizers.

May import `core` and `utils`.
"""
