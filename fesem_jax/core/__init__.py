"""The types of data, models and methods, and what runs them on devices.

Stacks of models and their algebra, devices, batches, keys. May import `utils`.
"""
