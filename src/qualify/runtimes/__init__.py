"""Floor 3: what a row needs to run, and running it.

Probe, admission, launch plan, start and stop of each engine, the relay between agent and engine,
and the pins of the environments. An engine is one file and one line in `engine.ENGINES`.
"""
