"""KV compression used the lossy way, for comparison: output may differ from plain decoding's."""
