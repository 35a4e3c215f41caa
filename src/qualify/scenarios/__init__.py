"""Floor 5: what is run against a configuration, one module per kind. Starts no servers."""
