"""Tells whether files hold what must not be published: credentials, keys, places on somebody's
machine, data that looks personal. Says what kind of thing stands where, never the thing.
"""
