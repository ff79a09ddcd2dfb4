"""Token recycling, with which FAFO is compared."""
