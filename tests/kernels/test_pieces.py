"""How contexts are shared out, once a step, and what is told of pieces, sums and bounds that are not true."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.decode_case import assert_right, decoded, shuffled, told
from support.paged_case import DEVICE, padded, poison

from kvsim.kernels.decode import decode_attention
from kvsim.kernels.faults import TOKENS, faults_on, read
from kvsim.kernels.launch import Tiling, decode_tiling
from kvsim.kernels.pieces import cut

pytestmark = pytest.mark.slow

CUT = {"longest": 700, "kv_heads": 2, "head_dim": 64}
HOWEVER = pytest.mark.parametrize(
    "shares", [{"splits": 1}, {"splits": 5}, {"tokens": 900}, {"tiling": Tiling(64, 4, 1, programs=1)}],
    ids=["a sequence each", "many", "as the GPU holds", "one"],
)  # fmt: skip
"""Shares without a beginning, and one, which nothing merges, too."""


@pytest.fixture(autouse=True)
def nothing_told_before():
    faults_on(DEVICE)[:] = 0


def attended(batch, query, shares, **more):
    """A decode with these pieces, whose tiling is told again."""
    return decoded(batch, query, **{name: shares[name] for name in shares if name == "tiling"} | more)


def numbers_of(batch):
    return batch.integers(batch.lengths)


def test_shares_begin_where_an_even_cut_falls_and_serve_all_layers():
    """15 tiles in 13 shares: they begin with tile floor(i * 15 / 13) of all."""
    lengths = [0, 700, 3, 64, 65]
    batch = shuffled(lengths)
    numbers = numbers_of(batch)
    pieces = cut(numbers, tokens=sum(lengths), splits=11, **CUT)
    assert (pieces.batch, pieces.tiling, pieces.shares) == (5, decode_tiling(64, 2), 13)
    starts = [[0, 0], *([1, i] for i in (1, 2, 3, 4, 5, 6, 8, 9, 10)), [2, 0], [3, 0], [4, 0], [5, 0]]
    assert pieces.starts.tolist() == starts
    query = batch.queries(len(lengths))
    for same in (numbers, numbers.clone(), numbers.long()):
        assert_right(batch, query, decoded(batch, query, pieces=pieces, lengths=same))
    told()


@pytest.mark.parametrize(("batch", "shares"), [(2500, 40), (3, 2500), (1, 1), (1024, 1025)])
def test_any_number_of_sequences_and_shares(batch, shares):
    """More than are counted in one go, too: each share begins where an even cut of all tiles falls."""
    lengths = torch.arange(batch, dtype=torch.int32) % 7 * 40
    tokens = int(lengths.sum())
    each = 32 * max(1, tokens // (32 * shares))
    pieces = cut(
        lengths.to(DEVICE), longest=8 * each, tokens=tokens, kv_heads=1, head_dim=64, splits=8,
        tiling=Tiling(32, 4, 1),
    )  # fmt: skip
    assert pieces.shares == max(1, -(-tokens // each))
    tiles = (lengths.long() + 31) // 32
    before = torch.cat([torch.zeros(1, dtype=torch.long), tiles.cumsum(0)])
    first = torch.arange(pieces.shares + 1) * tiles.sum() // pieces.shares
    found = pieces.starts.cpu().long()
    assert torch.equal((before[found[:, 0]] + found[:, 1])[1:], first[1:])
    assert found[0].tolist() == [0, 0] and found[-1].tolist() == [batch, 0]
    assert torch.equal(pieces.lengths.cpu(), lengths)
    inside = found[:-1][found[:-1, 1] > 0]
    assert (inside[:, 1] < tiles[inside[:, 0]]).all()


@HOWEVER
@pytest.mark.parametrize(
    ("write", "window"), [("by torch", None), ("behind its back", 100), ("in inference mode", None)]
)
def test_pieces_of_the_step_before_are_told_and_the_result_is_right(shares, write, window):
    """Whoever wrote the lengths, however they are cut, and though no length crosses a tile."""
    batch = shuffled([0, 700, 3, 65, 66], window=window)
    query = batch.queries(5)
    with torch.inference_mode(write == "in inference mode"):
        numbers = batch.integers([0, 700, 3, 65, 65])
        pieces = cut(numbers, window=window, **CUT | shares)
        where = numbers.data if write == "behind its back" else numbers
        where[4] += 1
        out = poison(torch.empty_like(query))
        with pytest.raises(ValueError, match="pieces are stale: sequence 4 has length 66, another than they"):
            attended(batch, query, shares, pieces=pieces, lengths=numbers, out=out)
            told()
    assert_right(batch, query, out)
    told()


@HOWEVER
@pytest.mark.parametrize("others", [[700, 0, 0, 300, 64], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5]])
def test_pieces_of_quite_other_lengths_are_told_and_the_result_is_right(others, shares):
    batch = shuffled([0, 700, 3, 64, 65])
    query, out = batch.queries(5), None
    pieces = cut(batch.integers(others), **CUT | shares | ({"tokens": 3500} if "tokens" in shares else {}))
    out = poison(torch.empty_like(query))
    with pytest.raises(ValueError, match="pieces are stale: sequence "):
        attended(batch, query, shares, pieces=pieces, out=out)
        told()
    assert_right(batch, query, out)


@HOWEVER
def test_pieces_cut_again_are_of_the_new_lengths(shares):
    """As in a replayed graph, which writes the same memory: for all who hold the pieces."""
    batch = shuffled([5, 640, 130, 0, 70])
    query = batch.queries(5)
    pieces = cut(batch.integers([0, 700, 3, 64, 65]), **CUT | shares)
    starts, copy = pieces.starts, pieces.lengths
    how = {name: shares[name] for name in shares if name == "tiling"}
    for longest in (700, 640):
        assert cut(numbers_of(batch), out=pieces, **CUT | how | {"longest": longest}) is pieces
        assert pieces.starts is starts and pieces.lengths is copy
        assert_right(batch, query, attended(batch, query, shares, pieces=pieces))
        told()
    if starts is not None:
        fresh = cut(numbers_of(batch), **CUT | shares)
        assert torch.equal(fresh.starts, starts)


def test_of_short_contexts_cut_again_into_many_shares_most_have_nothing():
    batch = shuffled([1, 0, 2, 70])
    query = batch.queries(4)
    pieces = cut(batch.integers([700] * 4), splits=11, **CUT)
    for lengths in ([0] * 4, batch.lengths):
        cut(batch.integers(lengths), tokens=sum(lengths), out=pieces, **CUT)
    assert pieces.shares == 44
    assert_right(batch, query, decoded(batch, query, pieces=pieces, longest=70))
    told()


@HOWEVER
def test_what_is_written_beside_the_lengths_is_nobodys_business(shares):
    """Lengths are often the first so many of a larger buffer."""
    batch = shuffled([0, 700, 3, 64, 65])
    query = batch.queries(5)
    buffer = batch.integers([*batch.lengths, 7, 7, 7])
    pieces = cut(buffer[:5], **CUT | shares)
    buffer[5:] += 1
    buffer[:5] += 1
    buffer[:5] -= 1
    assert_right(batch, query, attended(batch, query, shares, pieces=pieces, lengths=buffer[:5]))
    told()


@pytest.mark.parametrize("role", ["pieces", "out"])
def test_pieces_for_something_else_are_refused_before_anything_is_launched(role):
    batch = shuffled([300, 20])
    numbers, query = numbers_of(batch), batch.queries(2)

    def use(pieces, **more):
        if role == "out":
            return cut(numbers, out=pieces, **CUT | {"longest": 300} | more)
        return decoded(batch, query, pieces=pieces, lengths=numbers, **more)

    wanted = rf"{role} must be of 2 sequences, for 2 KV heads, window None, Tiling\(.*\); got those of "
    for lengths, other, said in (
        (numbers[:1], {}, "1 sequences"),
        (numbers, {"kv_heads": 1}, "2 sequences, for 1 KV heads"),
        (numbers, {"window": 50}, "2 sequences, for 2 KV heads, window 50"),
        (numbers, {"tiling": Tiling(32, 4, 1)}, r"2 .* Tiling\(tile=32, warps=4"),
        (numbers, {"group": 64}, r"2 .* Tiling\(tile=64, warps=8"),
        (numbers, {"element_bytes": 1}, "2 "),
    ):
        for splits in (1, 3):
            pieces = cut(lengths, splits=splits, **CUT | other)
            if pieces.tiling == decode_tiling(64, 2) and "element_bytes" in other:
                continue  # the table has the same for both
            with pytest.raises(ValueError, match=wanted + said):
                use(pieces)
    for splits in (1, 3, None):
        pieces = cut(batch.integers([20, 20]), splits=splits, **CUT | {"longest": 299})
        with pytest.raises(
            ValueError,
            match=f"{role} must be of contexts of up to longest = 300 tokens; got those of up to 299",
        ):
            use(pieces)
    with pytest.raises(ValueError, match=f"{role} must be on cpu|must be on meta"):
        cut(numbers.to("meta"), out=cut(numbers, **CUT), gpu=None, **CUT)
    assert not faults_on(DEVICE).any()


def test_what_pieces_are_made_with_is_not_said_again():
    batch = shuffled([300, 20])
    numbers, query = numbers_of(batch), batch.queries(2)
    for more in ({"tokens": 320}, {"splits": 2}):
        with pytest.raises(ValueError, match="tokens and splits are what pieces are made with"):
            decoded(batch, query, pieces=cut(numbers, **CUT), lengths=numbers, **more)
    with pytest.raises(ValueError, match="splits are what out was made with: it keeps its shares"):
        cut(numbers, out=cut(numbers, **CUT), splits=2, **CUT)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(("longest", "splits"), [(700, 3), (700, 1), (300, None), (700, None)])
def test_a_sum_above_tokens_is_told_late_and_the_result_is_right(longest, splits, window):
    """However contexts are cut: also where no number of programs depends on it."""
    lengths = [0, longest, 3, 64, 65]
    batch = shuffled(lengths, window=window)
    query = batch.queries(5)
    assert_right(batch, query, decoded(batch, query, tokens=sum(lengths), splits=splits))
    for tokens in (0, sum(lengths) - 1):
        out = poison(torch.empty_like(query))
        with pytest.raises(
            ValueError, match=f"tokens must be at least {sum(lengths)}, the sum of the lengths"
        ):
            decoded(batch, query, tokens=tokens, splits=splits, out=out)
            told()
        assert_right(batch, query, out)


def test_more_tokens_than_all_sequences_may_have_are_refused():
    said = r"tokens must be 0 to batch \* longest = 2 \* 700 = 1400, got 1401"
    with pytest.raises(ValueError, match=said):
        cut(torch.tensor([3, 4], dtype=torch.int32, device=DEVICE), tokens=1401, **CUT)


@pytest.mark.parametrize(
    ("length", "index", "said"),
    [
        (65, torch.int32, 65),
        (100_000, torch.int64, 100_000),
        (-300, torch.int32, -300),
        (2**40, torch.int64, 2**31 - 1),
    ],
)
@pytest.mark.parametrize("splits", [None, 1, 3])
def test_a_length_out_of_bounds_is_told_with_its_sequence_and_reads_nothing_outside(
    splits, length, index, said
):
    """The table has 4 blocks of 16 for it, and the next row begins behind them."""
    batch = shuffled([64, 64 if length > 0 else 0, 7])
    query = batch.queries(3)
    out = poison(torch.empty_like(query))
    says = f"longest must be at least every length; sequence 1 has length {said}, .* longest = 64"
    with pytest.raises(ValueError, match=says):
        decoded(
            batch, query, lengths=batch.integers([64, length, 7], index), longest=64, splits=splits, out=out,
            block_table=padded(batch.tables, index)[:, :4].contiguous(), tiling=Tiling(16, 4, 1),
        )  # fmt: skip
        told()
    assert_right(batch, query, out)


def test_a_cut_tells_a_length_out_of_bounds_itself():
    numbers = torch.tensor([3, 5, 701, 4], dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="sequence 2 has length 701, and a call was given longest = 700"):
        cut(numbers, **CUT)
        told()


@pytest.mark.parametrize("who", [(0, 0), (0, -1), (65_534, 2**31 - 1), (7, -(2**31) + 1)])
def test_a_sequence_and_its_length_are_one_number(who):
    seq, length = who
    assert read(((seq + 1) << 32) + length) == who


def test_a_device_with_and_without_its_index_has_one_place_for_faults():
    kind = torch.device(DEVICE).type
    assert faults_on(torch.device(kind)) is faults_on(torch.device(kind, 0))


def test_a_sum_told_wrongly_is_told_by_the_next_call_of_anything_that_takes_one():
    """The GPU has not come so far when the call returns; so it may be anybody's call that finds out."""
    faults_on(DEVICE)[TOKENS] = 10**10
    numbers = torch.tensor([3], dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="tokens must be at least 10000000000"):
        cut(numbers, **CUT)
    cut(numbers, **CUT)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="graphs are captured on a GPU")
@pytest.mark.parametrize("inside", [True, False], ids=["cut in the graph", "cut before each replay"])
def test_captured_graphs_take_the_lengths_of_their_step(inside):
    batch = shuffled([0, 700, 3, 64, 65])
    query, table = batch.queries(5), padded(batch.tables)
    numbers, out = batch.integers([0, 1, 1, 1, 1]), torch.empty_like(query)
    pieces = cut(numbers, **CUT)

    def attend():
        where = {"block_table": table, "out": out, "pieces": pieces}
        decode_attention(query, batch.keys, batch.values, numbers, longest=700, **where)

    attend()  # compiled
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if inside:
            cut(numbers, out=pieces, **CUT)
        attend()
    numbers.copy_(batch.integers(batch.lengths))
    if not inside:
        cut(numbers, out=pieces, **CUT)
    graph.replay()
    told()
    assert_right(batch, query, out)
    assert_right(batch, query, decoded(batch, query, pieces=pieces, lengths=numbers))
    told()
    numbers.clamp_(max=64)
    graph.replay()
    if inside:
        told()
    else:
        with pytest.raises(ValueError, match="pieces are stale"):
            told()
