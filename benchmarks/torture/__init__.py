"""Real runs that are killed, cut off from their disk or damaged, and then resumed."""
