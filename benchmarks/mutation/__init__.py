"""Mutation testing of the packages that compute results."""
