"""Floor 1: YAML manifests as typed objects with source positions, JSON Schemas, and the
configuration and suite digests. Runs nothing.
"""
