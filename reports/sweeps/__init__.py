"""Many runs: `values` and `plan` define them, `journal` saves them, `table` and `words` report them."""
