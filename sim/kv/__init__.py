"""What layers keep of a sequence, in pages of one pool: types, blocks, groups, as vLLM lays them out."""
