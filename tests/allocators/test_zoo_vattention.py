"""vAttention: rows, kvblocks and the pool after every call of the genuine code; its table of page sizes."""

import pytest
from support.vattention_admission import Promises
from support.zoo import first_difference, recording

from kvsim.allocators.virtual_memory.rows import Rows

pytestmark = pytest.mark.golden
MODELS = {"Yi-6B": (32, 4), "Llama-3-8B": (32, 8), "Yi-34B": (60, 8)}
"""Layers and key-value heads; 128 wide, 2 bytes."""
WASTE_MB = {
    ("Yi-6B", 1): (4, 8, 16, 128),
    ("Yi-6B", 2): (8, 16, 32, 256),
    ("Llama-3-8B", 1): (4, 8, 16, 128),
    ("Llama-3-8B", 2): (8, 16, 32, 256),
    ("Yi-34B", 1): (7.5, 15, 30, 240),
    ("Yi-34B", 2): (15, 30, 60, 480),
}
"""Table 8 of the paper: the most that a request wastes with pages of 64, 128, 256 KB and 2 MB."""


def tokens_per_page(page_bytes, kv_heads, head_dim, dtype_bytes, layers=1):
    """Tokens whose keys (or values) of one layer fill a page; of `layers` layers in the one-tensor layout."""
    return page_bytes // (kv_heads * head_dim * dtype_bytes * layers)


def rows_of(config, initial):
    """Rows as in a recording, and the pages of a kvblock."""
    layers = config["layers"]
    together = layers if config.get("megacache") else 1
    pages = 2 * layers // together
    free = config["kvblocks"] * pages * config["page_size"] + config.get("extra_bytes", 0)
    tokens = tokens_per_page(config["page_size"], config["kv_heads"], config["head_dim"], 2, together)
    most = -(
        -config["kv_heads"] * config["head_dim"] * 2 * together * config["max_context"] // config["page_size"]
    )
    assert initial["tokens_per_page"] == tokens
    assert initial["max_pages_per_req"] == most
    assert initial["virt_per_req"] == most * config["page_size"]
    whole = free // config["page_size"] // pages * pages  # pages of whole kvblocks only
    assert initial["phys_pages"] == whole
    kvblocks = initial["phys_pages"] // pages
    return Rows(config["max_batch"], kvblocks, tokens, most, deferred=config["deferred"]), pages


def state_of(rows, pages):
    return {
        "pool_kvblocks": rows.pool,
        "mapped": rows.mapped,
        "seq_len": rows.lengths,
        "overcommitted": rows.overcommitted,
        "num_free_kvblocks": rows.free,
        "maps": rows.maps * pages,
    }


def step_at_once(rows, lengths):
    """The mode without a thread: rows without a sequence give everything up, others get what they lack."""
    rows._set(lengths)
    for row, length in enumerate(lengths):
        if not length:
            rows._unmap(row, rows.mapped[row])
        elif not rows.map_for(row):
            return False
    return True


def call(rows, op):
    """Do what was recorded; what it returns, and the state after its synchronous part."""
    name, args = op["op"], op["args"]
    if name == "alloc_new_batch_idx":
        return rows.place(args[1])
    if name == "free_batch_idx":
        return rows.leave(args[0])
    if name == "step_sync":
        return None if step_at_once(rows, args[0]) else "out of memory"
    assert name == "step_async"
    return None if rows.before_step(args[0]) else "out of memory"


def replay(case):
    rows, pages = rows_of(case["config"], case["initial"])
    if wrong := first_difference(state_of(rows, pages), case["initial"]["state"]):
        return -1, *wrong
    for at, op in enumerate(case["ops"]):
        theirs = "out of memory" if "OOM" in op.get("error", "") else op["ret"]
        ours = call(rows, op)
        if ours != theirs:
            return at, ours, theirs
        if wrong := first_difference(state_of(rows, pages), op.get("after_sync", {})):
            return at, "after_sync", *wrong
        if op["op"] == "step_async" and ours is None:
            rows.after_step()
        if wrong := first_difference(state_of(rows, pages), op.get("state", {})):
            return at, *wrong
    return None


def test_every_row_and_page_is_as_in_the_genuine_code():
    cases = recording("vattention/kvblocks.json.gz")["sequences"]
    assert cases
    assert {name: wrong for name, case in cases.items() if (wrong := replay(case))} == {}


def test_tokens_per_page_and_addresses_are_those_of_the_genuine_code():
    table = recording("vattention/kvblocks.json.gz")["table"]
    assert len(table["rows"]) == 24
    for model, tp, kib, tokens, most, virtual, pages in table["rows"]:
        layers, heads = MODELS[model]
        assert tokens_per_page(kib << 10, heads // tp, 128, 2) == tokens
        assert -(-4096 // tokens) == most
        assert most * (kib << 10) == virtual
        assert 2 * layers == pages


def test_worst_waste_is_that_of_the_paper():
    for (model, tp), megabytes in WASTE_MB.items():
        ours = [2 * MODELS[model][0] * (kib << 10) * tp / 2**20 for kib in (64, 128, 256, 2048)]
        assert ours == list(megabytes), (model, tp)


def test_admission_is_that_of_the_genuine_scheduler():
    cases = recording("vattention/block_space_manager.json.gz")
    assert cases
    for name, case in cases.items():
        config = case["config"]
        kept = {"watermark": config["watermark"]} if "watermark" in config else {}
        promises = Promises(config["block_size"], config["num_gpu_blocks"], **kept)
        tokens = {}
        for at, op in enumerate(case["ops"]):
            kind, args, ours = op["op"], op["args"], None
            if kind == "can_allocate":
                tokens[args[0]] = args[1]
                ours = promises.can_admit(args[1])
            elif kind == "allocate":
                promises.admit(args[0], tokens[args[0]])
            elif kind == "can_append_slot":
                ours = promises.can_append(*(promises.active[seq] for seq in args))
            elif kind == "append_slot":
                promises.append(args[0])
            elif kind == "free":
                promises.release(args[0])
            elif kind == "set_free_blocks":
                promises.free = args[0]
            else:
                assert kind == "clear_promised_blocks"
                promises.promised = 0
            state = {
                "free_blocks": promises.free,
                "promised_blocks": promises.promised,
                "watermark_blocks": promises.watermark,
                "active": {str(seq): count for seq, count in promises.active.items()},
            }
            assert (ours, state) == (op["ret"], op["state"]), (name, at)
