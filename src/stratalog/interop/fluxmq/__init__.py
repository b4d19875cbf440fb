"""Directories of FluxMQ, a broker written in Go: its queues' logs and consumer groups."""
