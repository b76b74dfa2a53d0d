"""Sampling of clients, and placement of their data.

May import `core` and `utils`.
"""
