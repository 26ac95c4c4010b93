"""Where a GPU's memory goes, and how many requests fit: `fit` answers, and `sim fit` shows it.

asked.py      the question, as options    answer.py  the answer, and what leads to it
budget.py     weights, activations, graphs, and what is left for the cache
sim/kv/       the block size that the engine takes, the page of every layer, their groups
capacity.py   blocks, printed tokens, concurrency, refusals
lengths.py    requests of given lengths    what_if.py  other settings
log.py        vLLM's own log            log_terms.py  which term explains the difference to it
"""
