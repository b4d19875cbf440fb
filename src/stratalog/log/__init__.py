"""The unified log: the durability boundary everything else is derived from."""
