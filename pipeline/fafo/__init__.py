"""FAFO decoding: guesses from a compressed view of the KV cache, verified against the full cache in one pass."""
