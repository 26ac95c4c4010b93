"""What layers cache of a sequence, in pages of one pool: types, blocks, groups, as laid out by vLLM."""
