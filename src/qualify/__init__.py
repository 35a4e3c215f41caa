"""Qualify: tells whether an exact combination of image, model, hardware and agent may be released.

Nothing is imported here: `import qualify` must stay free, because `qualify --help` pays for it.
"""

__version__ = "0.1.0"
