"""A run: rounds, compiled programs, checkpoints, measuring and planning.

May import all of the above.
"""
