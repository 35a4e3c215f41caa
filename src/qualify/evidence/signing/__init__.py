"""Signatures over evidence: keys, DSSE envelopes, SSH and Sigstore signatures, who may sign."""
