"""Floor 2: the results database, a projection of the ledger that can be made anew at any time.

Decides no verdicts. The only package that imports DuckDB.
"""
