"""Facts about drawn lengths, shared system prompts, and streams of random numbers that do not mix."""

import contextlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim import cli, workloads
from kvsim.sim.content import behind
from kvsim.sim.errors import KvsimError
from kvsim.workloads.arrivals import PROCESSES
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.synthetic import DISTRIBUTIONS, draw_lengths

N = 200_000


def draw(text, n=N, seed=1):
    return draw_lengths("input_len", text, n, np.random.default_rng(seed))


def build(trace="synthetic", **options):
    usual = {"num_prompts": None, "request_rate": None, "burstiness": None, "seed": 0}
    return workloads.build(trace, **usual | options)


def complaint(trace="synthetic", **options):
    with pytest.raises(KvsimError) as error:
        build(trace, **options)
    return str(error.value)


def assert_mean(values, mean, deviation):
    """Within five standard errors."""
    assert abs(values.mean() - mean) < 5 * deviation / math.sqrt(len(values))


# Distributions


@pytest.mark.parametrize("text", ["512", "fixed:512", "512.0"])
def test_a_fixed_length_is_always_the_same(text):
    assert (draw(text, 10) == 512).all()


def test_uniform_lengths_are_each_as_likely_with_both_ends():
    found = draw("uniform:3:12")
    counts = np.bincount(found)[3:]
    assert found.min() == 3 and len(counts) == 10
    assert np.abs(counts - N / 10).max() < 5 * math.sqrt(N * 0.1 * 0.9)
    assert (draw("uniform:7:7", 9) == 7).all()


@pytest.mark.parametrize(("mean", "sigma"), [(500, 0.5), (2000, 1.0), (800, 0.0)])
def test_lognormal_lengths_have_the_asked_mean_and_spread_of_logarithms(mean, sigma):
    found = draw(f"lognormal:{mean}:{sigma}")
    assert_mean(found, mean, mean * math.sqrt(math.expm1(sigma**2)) + 1e-9)
    logs = np.log(found)
    assert abs(np.median(found) - mean * math.exp(-(sigma**2) / 2)) < 0.01 * mean
    assert logs.std() == pytest.approx(sigma, rel=5 / math.sqrt(2 * N) + 0.005, abs=1e-9)


@pytest.mark.parametrize("alpha", [0, 0.8, 1.5])
def test_zipf_lengths_have_the_asked_probabilities(alpha):
    found = draw(f"zipf:{alpha}:50")
    weights = np.arange(1, 51.0) ** -alpha
    expected = weights / weights.sum() * N
    counts = np.bincount(found, minlength=51)[1:]
    assert found.min() >= 1 and found.max() <= 50
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 5).all()


@pytest.mark.parametrize("text", ["7", "uniform:1:900", "lognormal:300:2", "zipf:1.1:5000"])
def test_the_same_state_gives_the_same_lengths_and_more_only_add(text):
    assert np.array_equal(draw(text, 500), draw(text, 900)[:500])
    assert draw(text, 900).min() >= 1 and draw(text, 0).shape == (0,)


def test_lengths_may_be_those_of_any_trace():
    drawn = build(num_prompts=20_000, input_len="trace:sharegpt", output_len="trace:sharegpt")
    table = workloads.load("sharegpt")
    for column in ("prompt_tokens", "output_tokens"):
        known = getattr(table, column)
        assert np.isin(getattr(drawn, column), known).all()
        assert_mean(getattr(drawn, column), known.mean(), known.std())
    assert abs(np.corrcoef(drawn.prompt_tokens, drawn.output_tokens)[0, 1]) < 5 / math.sqrt(20_000)


def test_the_usual_synthetic_request_is_that_of_vllms_benchmark():
    workload = build()
    assert len(workload) == 1000
    assert (workload.prompt_tokens == 1024).all() and (workload.output_tokens == 128).all()


def test_lengths_of_another_trace_are_replaced_and_its_arrivals_kept():
    own = Lengths("own", np.array([5, 6]), np.array([7, 8]), arrival_s=np.array([1.0, 4.0]))
    workload = build(own, input_len="fixed:30")
    assert workload.prompt_tokens.tolist() == [30, 30]
    assert workload.output_tokens.tolist() == [7, 8]
    assert (workload.arrival_ps / 1e12).tolist() == [1, 4]
    assert "Input lengths drawn: fixed:30." in workload.notes


ALL = "fixed:TOKENS, uniform:LOW:HIGH, lognormal:MEAN:SIGMA or zipf:ALPHA:MAX"


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("", f"be {ALL}"),
        ("normal:3:4", f"be {ALL}"),
        ("uniform:3", f"be {ALL}"),
        ("uniform:3:x", f"be {ALL}"),
        ("fixed:inf", f"be {ALL}"),
        ("nan", f"be {ALL}"),
        ("zipf:1:2:3", f"be {ALL}"),
        ("0", "have a whole number from 1 to 1,000,000,000 as TOKENS"),
        ("2.5", "have a whole number from 1 to 1,000,000,000 as TOKENS"),
        ("uniform:0:9", "have a whole number from 1 to 1,000,000,000 as LOW"),
        ("uniform:9:3", "have a whole number from 9 to 1,000,000,000 as HIGH"),
        ("zipf:1:0", "have a whole number from 1 to 10,000,000 as MAX"),
        ("zipf:-1:9", "have an ALPHA of at least 0"),
        ("lognormal:0:1", "have a MEAN from 1 to 1,000,000,000 and a SIGMA from 0 to 20"),
        ("lognormal:9:-1", "have a MEAN from 1 to 1,000,000,000 and a SIGMA from 0 to 20"),
        ("lognormal:9:1e200", "have a MEAN from 1 to 1,000,000,000 and a SIGMA from 0 to 20"),
    ],
)
def test_a_distribution_that_cannot_be_is_named(text, must):
    assert complaint(input_len=text) == f"input_len must {must}, got {text!r}"


def test_extreme_parameters_stay_within_whole_tokens():
    assert draw("lognormal:1000000000:20", 1000).max() <= 1_000_000_000
    assert (draw("zipf:1e6:100", 100) == 1).all()


def test_lengths_that_a_trace_tells_in_full_cannot_be_replaced():
    texts = behind(np.zeros(2, dtype=np.int64), 3, None)
    told = Lengths("told", np.array([5, 6]), np.array([7, 8]), texts=texts)
    expected = "output_len must be left out for trace told, which tells what its requests consist of, got '5'"
    assert complaint(told, output_len="5") == expected


# Shared system prompts


def two_groups(sessions=None, **options):
    labels = {} if sessions is None else {"session": np.array(sessions, dtype=object)}
    own = Lengths("own", np.arange(10, 16), np.full(6, 4), labels=labels)
    return build(own, shared_prefix="2x100", **options)


def test_every_prompt_grows_by_a_system_prompt_that_its_group_shares():
    workload = two_groups()
    assert workload.prompt_tokens.tolist() == list(range(110, 116))
    groups = [content[0][0] for content in workload.content]
    assert sorted(set(groups)) == [0, 1]
    assert workload.content == [((group, 0, 100),) for group in groups]


@pytest.mark.slow
def test_groups_are_as_popular_as_asked():
    equal = build(num_prompts=N, shared_prefix="4x10")
    zipf = build(num_prompts=N, shared_prefix="4x10:1")
    for workload, weights in ((equal, np.ones(4)), (zipf, 1 / np.arange(1, 5))):
        counts = np.bincount([content[0][0] for content in workload.content])
        expected = weights / weights.sum() * N
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_all_turns_of_a_session_have_the_same_system_prompt():
    for seed in range(20):
        workload = two_groups(["a", "b", "a", None, "b", "a"], seed=seed)
        groups = [content[0][0] if content else None for content in workload.content]
        assert groups[0] == groups[2] == groups[5] and groups[1] == groups[4]


def test_what_a_trace_shares_is_still_shared_behind_one_system_prompt(tmp_path):
    file = tmp_path / "W.jsonl"
    row = '{"output_tokens": 4, "segments": [["manual", 50], ["%s", 9]]}\n'
    file.write_text("".join(row % name for name in "abc"))
    assert build(str(file)).content == [((0, 0, 50),)] * 3
    workload = build(str(file), shared_prefix="1x100")
    ((system, manual),) = set(workload.content)
    assert system[1:] == (0, 100) and manual[1:] == (0, 50) and system[0] != manual[0]
    assert workload.prompt_tokens.tolist() == [159] * 3


def test_turns_still_begin_with_the_turn_before_and_its_answer(tmp_path):
    file = tmp_path / "W.jsonl"
    turns = ((20, 5), (40, 6), (60, 7))
    file.write_text(
        "".join(f'{{"prompt_tokens": {p}, "output_tokens": {o}, "session": "s"}}\n' for p, o in turns)
    )
    contents = build(str(file), shared_prefix="3x100").content
    assert [[run[2] for run in content] for content in contents] == [[100, 25], [100, 46], [100, 46]]


def test_several_answers_share_the_whole_prompt_behind_the_system_prompt():
    workload = build(num_prompts=3, input_len="30", shared_prefix="1x100", n=2)
    assert [sum(run[2] for run in content) for content in workload.content] == [130] * 3
    assert len({content[0] for content in workload.content}) == 1
    assert len({content[1] for content in workload.content}) == 3


@pytest.mark.parametrize("text", ["", "10", "x", "10x", "1.5x3", "2x3:x", "2x3:-1", "-2x3", "٣x3"])
def test_a_shared_prefix_of_another_form_is_named(text):
    must = "GROUPSxTOKENS, as in 10x200, or GROUPSxTOKENS:ALPHA"
    assert complaint(shared_prefix=text) == f"shared_prefix must be {must}, got {text!r}"


@pytest.mark.parametrize("text", ["0x3", "3x0", "99999999x3"])
def test_a_shared_prefix_needs_a_group_and_a_token(text):
    must = "from 1 to 10,000,000 groups of 1 to 1,000,000,000 tokens"
    assert complaint(shared_prefix=text) == f"shared_prefix must be {must}, got {text!r}"


# What a seed fixes

CHOICES = {
    "input_len": "uniform:1:1000",
    "output_len": "lognormal:200:1",
    "shared_prefix": "8x0100",
    "request_rate": 7.0,
    "arrivals": "onoff:3:4",
}
DRAWN_BY = {
    "input_len": lambda w: w.prompt_tokens - 100,
    "output_len": lambda w: w.output_tokens,
    "shared_prefix": lambda w: [content[0][0] for content in w.content],
    "request_rate": lambda w: w.arrival_ps,
    "arrivals": lambda w: w.arrival_ps,
}
OTHERS = {
    "input_len": "zipf:1:700",
    "output_len": "fixed:9",
    "shared_prefix": "20x100:1.2",
    "request_rate": 3.0,
    "arrivals": "diurnal:60:1.5",
    "burstiness": 0.4,
}


@pytest.mark.parametrize(("changed", "kept"), list(itertools.product(OTHERS, DRAWN_BY)))
def test_a_choice_changes_nothing_that_it_has_nothing_to_do_with(changed, kept):
    if kept == changed or {kept, changed} <= {"request_rate", "arrivals", "burstiness"}:
        return
    one, other = (
        build(num_prompts=400, seed=3, **CHOICES | more) for more in ({}, {changed: OTHERS[changed]})
    )
    assert np.array_equal(DRAWN_BY[kept](one), DRAWN_BY[kept](other))


def test_prompts_and_answers_are_drawn_independently():
    workload = build(num_prompts=N, input_len="uniform:1:1000", output_len="uniform:1:1000")
    assert abs(np.corrcoef(workload.prompt_tokens, workload.output_tokens)[0, 1]) < 5 / math.sqrt(N)


def test_a_run_of_drawn_lengths_repeats_from_its_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    choices = "--trace synthetic --num-prompts 40 --input-len zipf:1:90 --output-len uniform:2:9"
    few = ["--no-plots", "--quiet"]
    more = "--arrivals onoff:1:2 --shared-prefix 2x64:1 --enable-prefix-caching --out one"
    assert cli.main(["run", *choices.split(), *more.split(), *few]) == 0
    assert cli.main(["run", "--config", "one/config.json", "--out", "two", *few]) == 0
    for name in ("config.json", "requests.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_every_distribution_is_in_the_help():
    text = next(p.help for p in _options("run") if p.name == "input_len")
    assert all(f"{name}:{numbers}" in text for name, numbers in DISTRIBUTIONS.items() if name != "fixed")


NUMBERS = st.one_of(
    st.floats().map(repr),
    st.integers(-3, 3000).map(str),
    st.sampled_from(["", "1e400", "x", "1_0", "5e-324"]),
)
CHOSEN = st.one_of(
    st.text(max_size=12),
    st.builds(
        lambda name, numbers: ":".join([name, *numbers]),
        st.sampled_from([*DISTRIBUTIONS, *PROCESSES, "exponential"]),
        st.lists(NUMBERS, max_size=3),
    ),
    st.builds(lambda groups, tokens: f"{groups}x{tokens}:1", NUMBERS, NUMBERS),
)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["input_len", "output_len", "shared_prefix", "arrivals", "think_time"]), CHOSEN)
def test_any_text_is_a_choice_or_one_line_of_complaint(option, text):
    clients = {"clients": 2} if option == "think_time" else {}
    with contextlib.suppress(KvsimError):
        assert len(build(num_prompts=5, **{option: text}, **clients)) == 5


def _options(command):
    import typer

    return typer.main.get_command(cli.app).commands[command].params
