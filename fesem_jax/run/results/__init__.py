"""Results of a run, its files, and finished runs read from them.

May import `evaluation`, `models`, `data`, `core` and `utils`.
"""
