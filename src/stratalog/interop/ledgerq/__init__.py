"""Directories of LedgerQ, a queue written in Go, as its releases since 1.0 write them."""
