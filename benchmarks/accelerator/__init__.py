"""One command that measures an accelerator; see `benchmarks.accelerator.__main__`."""
