"""Stub until branch dataB is merged."""

VOCABULARY = 'abcdef'
