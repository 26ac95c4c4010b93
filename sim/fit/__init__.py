"""Where a GPU's memory goes, and how many requests fit: `fit` answers, and `sim fit` shows it.

asked.py      the question, as options    answer.py  the answer, and what leads to it
budget.py     weights, activations, graphs, and what is left for the cache
blocks.py     the block size that the engine takes, and the page of every layer
pages.py      groups of layers over one pool of blocks    packing.py  where pages of one block may differ
capacity.py   blocks, printed tokens, concurrency, refusals
lengths.py    requests of given lengths    what_if.py  other settings    log.py  vLLM's own log beside it
"""
