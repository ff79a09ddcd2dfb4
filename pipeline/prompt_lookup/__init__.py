"""Prompt lookup decoding, with which FAFO is compared."""
