"""Floor 2: run a command isolated, and say what was really enforced."""
