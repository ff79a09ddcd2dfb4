"""Self-speculation by compressed KV, with which FAFO is compared."""
