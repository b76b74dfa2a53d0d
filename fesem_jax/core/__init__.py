"""Types of data, models and methods, and their execution on devices.

Stacks of models and their algebra, devices, cohorts, batches, keys. May import `utils`
and `tasks`.
"""
