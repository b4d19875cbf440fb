"""Segments: files per topic for records of the log, indexed, evicted, rewritten, moved."""
