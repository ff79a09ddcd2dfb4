"""Lookahead decoding, with which FAFO is compared: its loop with a window that sees the whole cache."""
