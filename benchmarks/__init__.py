"""Benchmarks; see each module."""
