"""Every answer names its clock and the clock's error for its model and GPU."""

import pytest

from kvsim.reports.clocks import differ, extrapolated, told
from kvsim.sim.build import resolve
from kvsim.sim.cost import clock
from kvsim.sim.cost.clock import clock_of
from kvsim.sim.cost.trust import Trust, read_errors
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.record.summary import Validated


@pytest.fixture(autouse=True)
def nobody_has_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path / "none"))


def of(**options):
    return clock_of(Scenario(**options).deployed())


def trust(**facts):
    usual = {"cost": "measured-elsewhere", "model": "llama-3.1-8b", "gpu": "h100", "precision": "bf16"}
    numbers = dict.fromkeys(("ttft_error", "ttft_bias", "throughput_error", "throughput_bias"), 0.15)
    return Trust(**usual | {"servers": 3, "tpot_error": 0.04, "tpot_bias": -0.04} | numbers | facts)


def test_a_clock_says_what_it_is_of_what_and_when():
    measured = of(model="llama-3.1-8b", gpu="h100")
    assert (measured.name, measured.profile, measured.device) == (
        "measured elsewhere",
        "h100-vllm",
        "h100_sxm",
    )
    assert measured.date.startswith("2026-")
    assert [of(cost=cost).name for cost in ("roofline", "constant:0.03", "a100-40gb-sosp23")] == [
        "roofline",
        "constant 0.03 s",
        "published a100-40gb-sosp23",
    ]
    assert of(cost="roofline").profile is None


def test_trust_is_of_the_same_model_gpu_precision_and_clock(monkeypatch):
    known = trust()
    key = known.cost, known.model, known.gpu, known.precision
    monkeypatch.setattr(clock, "_errors", lambda: {key: known})
    same = of(model="llama-3.1-8b", gpu="h100")
    assert same.trust == known
    assert same.trust_words == "TPOT 4.0 % off, TTFT 15.0 % (medians of 3 real vLLM servers)"
    assert same.as_json()["validated"] == {
        name: value for name, value in vars(known).items() if name not in ("cost", "model", "gpu")
    }
    said = Validated(same.as_json()["validated"])
    assert (said.servers, said.tpot_error, said.precision) == (3, 0.04, "bf16")
    assert {"servers", "tpot_bias"} <= {*dir(said)}
    for other in ({"gpu": "h200"}, {"model": "qwen3-32b"}, {"cost": "roofline"}):
        found = of(**{"model": "llama-3.1-8b", "gpu": "h100"} | other)
        assert (found.trust, found.trust_words) == (None, "not validated")
    in_fp8 = of(model="llama-3.1-8b", gpu="h100", quantization="fp8")
    assert in_fp8.trust is None
    assert in_fp8.trust_words == "not validated; in bf16 TPOT 4.0 % off, TTFT 15.0 %"


def test_a_table_of_errors_that_is_none_gets_one_line(tmp_path):
    (tmp_path / "t.csv").write_text("cost,model\nroofline,x\n")
    with pytest.raises(KvsimError, match=r"t\.csv is none of sim validate --table"):
        read_errors(tmp_path / "t.csv")


def test_words_name_the_clock_the_share_extrapolated_and_the_trust():
    measured = {
        "clock": "measured elsewhere",
        "profile": "h100-vllm",
        "date": "2026-11-21",
        "trust": "not validated",
    }
    one, other = {**measured, "extrapolated_share": 0.012}, {**measured, "extrapolated_share": 0.031}
    assert told([one]) == (
        "measured elsewhere (h100-vllm of 2026-11-21); 1.2 % of the time extrapolated; not validated"
    )
    assert extrapolated([one, other]) == "1.2 to 3.1 % of the time extrapolated"
    assert extrapolated([{**measured, "extrapolated_share": 0.0}]) == "nothing extrapolated"
    assert told([{"clock": "roofline", "trust": "not validated"}]) == "roofline; not validated"
    assert told([{"source": "roofline, analytic: of an older version"}]) == "roofline; not validated"


def test_systems_on_different_clocks_are_not_comparable_and_told_the_remedy():
    roofline, measured = {"clock": "roofline"}, {"clock": "measured elsewhere"}
    assert differ([("a100-80gb", measured), ("h100", measured)]) == ""
    assert differ([("a100-40gb", roofline), ("a100-80gb", measured), ("h100", measured)]) == (
        "Not comparable: their clocks differ (roofline: a100-40gb; measured elsewhere: a100-80gb, h100): "
        "--cost roofline puts them all on one clock."
    )


def test_the_table_that_ships_is_what_validate_finds(tmp_path):
    from kvsim.reports.truth import errors_of, validate, write_errors
    from kvsim.sim.validate import sources

    found = errors_of(validate(*sources("requests", "llama-3.1-8b", "rtx-4090", 1, None)))
    (shipped,) = [
        each
        for each in read_errors(clock.SHIPPED)
        if (each.cost, each.gpu) == ("measured-elsewhere", "rtx-4090")
    ]
    assert len(found) == 1 and found[0].tpot_error == pytest.approx(shipped.tpot_error, abs=5e-5)
    file = tmp_path / "errors.csv"
    write_errors([trust(cost="roofline")], file)
    write_errors(found, file)  # rows of other clocks stay
    write_errors(found, file)
    assert read_errors(file) == [*found, trust(cost="roofline")]


def test_validate_takes_only_a_model_and_a_gpu(capsys):
    from kvsim.sim.validate import sources

    points, runs = sources(None, "gpt-oss-120b", "h100", 1, None)
    assert len(points) == 36 and not runs
    assert {(each.model, each.gpu) for each in points} == {("openai/gpt-oss-120b", "h100_sxm")}
    assert sources("points", "openai/gpt-oss-120b", "h100_sxm", 1, None)[0] == points
    points, runs = sources(None, None, "rtx-4090", 1, None)
    assert not points and [run.deployment.gpu.name for run in runs] == ["rtx-4090"]
    with pytest.raises(KvsimError, match="no server of gpt-oss-120b on l40s was measured, but "):
        sources(None, "gpt-oss-120b", "l40s", 1, None)


@pytest.mark.parametrize(
    ("model", "gpu", "cost", "tp"),
    [
        ("opt-13b", "a100-40gb", "a100-40gb-sosp23", 1),
        ("opt-13b", "a100-80gb", "a100-80gb-osdi24:vllm", 1),
        ("bloom-176b", "h100", "dgx-isca24:context", 8),
    ],
)
def test_a_published_clock_of_16_bits_refuses_other_types(model, gpu, cost, tp):
    asked = {"model": model, "gpu": gpu, "cost": cost, "tensor_parallel_size": tp}
    resolve(Scenario(**asked, kv_cache_dtype="bf16").deployed())
    for option, given in (("quantization", "fp8"), ("kv_cache_dtype", "fp8"), ("kv_cache_dtype", "fp32")):
        with pytest.raises(KvsimError) as raised:
            resolve(Scenario(**asked, **{option: given}).deployed())
        assert str(raised.value) == (
            f"{option} must be left out for cost {cost}, whose times are of 16 bits, got {given}"
        )
