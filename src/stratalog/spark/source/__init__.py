"""The data source `stratalog`: reading, streaming and writing."""
