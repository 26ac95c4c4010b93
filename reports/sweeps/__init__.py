"""Many runs: `values` and `plan` say which, `journal` keeps them, `table` and `words` tell."""
