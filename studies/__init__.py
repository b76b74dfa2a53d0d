"""Programs of studies, whose results the manual reports: FeSEM from wrong starts, with
growing numbers of clusters, and which methods find which groups.
"""
