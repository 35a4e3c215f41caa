"""Floor 3: model snapshots, acquired, verified and kept in one content-addressed store.

Nothing is believed because of its name or its origin: a file belongs to a model when its size and
its SHA-256 are what the model's manifest says, and never otherwise. An offline run downloads
nothing.
"""
