"""State derived from the log: rebuilt by replay, never the truth itself."""
