"""A run: rounds, compiled programs, checkpoints and measuring.

May import all of the above.
"""
