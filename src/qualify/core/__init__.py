"""Floor 0: identifiers, digests, canonical JSON, clock, status words and error types.

Everything above may import this package; it imports nothing of Qualify and does no I/O beyond
reading a file it is given.
"""
