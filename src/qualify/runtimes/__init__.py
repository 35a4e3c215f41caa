"""Floor 3: what a row needs to run, and running it.

Probe, admission, launch plan, start and stop of each engine, and the relay between agent and
engine. An engine is one file and one line in `engine.ENGINES`.
"""
