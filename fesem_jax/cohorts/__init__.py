"""Which clients take part, and where their data lie.

May import `core` and `utils`.
"""
