"""Floor 1: record types and the ledger. Knows no scenarios."""
