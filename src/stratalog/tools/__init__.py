"""Looking after a directory: verify, repair, inspect."""
