"""What a run needs of each device, by compiling it ahead of time.

May import `run` and what it may; no run imports it.
"""
