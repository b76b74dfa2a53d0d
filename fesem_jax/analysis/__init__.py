"""Studies of several runs: comparing, tuning, choosing K, new clients.

May import `run` and what it may.
"""
