"""What layers cache of a sequence, in pages of one pool: types, blocks and groups, laid out as in vLLM."""
