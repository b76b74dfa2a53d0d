"""Rules on what a user runs that would give a wrong number without a word.

A rule is here if plain use leads to what it finds. The engine does not import rules:
`data.load`, `simulate` and `callbacks` of runs do, once for each subject.
"""
