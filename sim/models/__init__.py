"""Models and GPUs: the built-in ones, a Hugging Face config.json, a user's own GPU."""
