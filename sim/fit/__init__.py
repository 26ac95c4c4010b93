"""Where a GPU's memory goes, and how many requests fit: computed by `fit`, shown by `sim fit`.

asked.py      the question, as options    answer.py  the answer, and how it is derived
budget.py     weights, activations, graphs, and the memory left for the cache
sim/kv/       the engine's block size, the page of every layer, their groups
capacity.py   blocks, printed tokens, concurrency, refusals
lengths.py    requests of given lengths    what_if.py  other settings
log.py        vLLM's own log            log_terms.py  which term explains the difference from it
"""
