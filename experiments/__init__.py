"""Experiment binaries: absl flags around the library."""
