"""Models and GPUs: built-in ones, any Hugging Face config.json, a user's own GPU."""
