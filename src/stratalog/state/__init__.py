"""State computed from frames: pure, the same live and in recovery."""
