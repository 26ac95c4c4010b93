"""Memory below the GPU's: tiers that keep the keys and values of prefixes. Integers only, and no clock."""
