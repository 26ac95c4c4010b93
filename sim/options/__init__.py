"""What a user may choose: every option with its help, unit, default and limits."""
