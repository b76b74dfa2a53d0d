"""Types of data, models and methods, and their execution on devices."""
