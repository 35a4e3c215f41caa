"""Floor 2: which files an environment or an image consists of, and carrying them by hand.

Locks and how they are resolved, Debian closures, the machine's own package clients, and the depot:
a folder that holds every file of some locks, checked, for a machine that has no network.
"""
