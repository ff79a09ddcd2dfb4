"""Self-speculation by layer skipping, with which FAFO is compared."""
