"""Many runs: `values` and `plan` define them, `journal` stores them, `table` and `words` report them."""
