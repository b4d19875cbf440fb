"""Background work: rounds of upkeep, adoption, the cold store, purging."""
