"""Crashes: of a fake disk after every operation, and of real processes."""
