"""Bytes to values and back; no file is touched here."""
