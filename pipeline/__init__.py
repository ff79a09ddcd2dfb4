"""FAFO: lossy KV cache compression for lossless inference acceleration (ICML 2026)."""
