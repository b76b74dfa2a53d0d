"""Rules on what users run that would give a wrong number without an error."""
