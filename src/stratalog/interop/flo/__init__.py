"""Directories of Flo, a log with projections written in Zig."""
