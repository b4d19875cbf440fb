"""Directories of topics, a streaming server written in Rust."""
