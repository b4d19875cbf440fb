"""Sealed history of topics as Parquet, for other engines."""
