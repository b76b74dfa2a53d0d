"""Memory and exchanges of a run on each device, from compilation ahead of time.

May import `run` and what it may; no run imports it.
"""
