"""Local training of a cohort: one compiled loop for every method."""
