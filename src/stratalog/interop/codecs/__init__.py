"""Encodings that foreign layouts share: S2 and Snappy blocks, varints, columns cut out of bytes."""
