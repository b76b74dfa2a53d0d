"""Accuracy, F1, agreement of clusters, and differences between runs.

May import what `training` may, and `training`.
"""
