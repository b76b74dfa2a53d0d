"""Other simulators on the same work; see `benchmarks.peers.__main__`."""
