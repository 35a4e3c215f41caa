"""Floor 1, at its bottom: locks, atomic publishing, append logs with torn tails, private folders.

Serves the ledger, the journal and the model store. Knows nothing of what it stores.
"""
