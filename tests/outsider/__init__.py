"""Stratalog as a stranger would use it: everything at once, and everything that can go wrong."""
