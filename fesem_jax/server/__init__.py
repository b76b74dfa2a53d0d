"""E-step, M-step, k-means, and the comparison of models with centers.

May import what `training` may, and `training`.
"""
