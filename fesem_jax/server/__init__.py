"""The server: E-step, M-step, k-means, starts, robust rules and server optimizers.

May import what `training` may, and `training`.
"""
