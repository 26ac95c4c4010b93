"""How long a step takes: by formula, by published figures, by a measured profile."""
