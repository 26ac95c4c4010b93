"""Memory below the GPU's: tiers that keep keys and values of prefixes. Integers only, and no clock."""
