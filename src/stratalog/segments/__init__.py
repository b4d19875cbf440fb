"""What the log's records become: files per topic, indexed, evicted, rewritten, moved."""
