"""What mends methods with centers, beyond their papers: each wraps a method.

A wrapper takes an `Algorithm` with centers (`Algorithm.with_centers`) and gives one,
whose state nests the method's own, as Optax chains transformations:

  with_reclustering(fesem(local, num_clusters=4), every=5)

From the outermost to the innermost, wrappers go as `algorithms.build` chains them:
late joins and ages, reclustering, checks of losses, empty centers.
"""
