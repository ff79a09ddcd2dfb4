"""Standard auto-regressive decoding, the speed reference."""
