"""Types of data, models and methods, and their execution on devices.

Stacks of models and their algebra, devices, batches, keys. May import `utils`.
"""
