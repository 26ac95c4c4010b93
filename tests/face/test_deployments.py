"""`--gpu all --for-rate R`: every deployment that fits, the cheapest confirmed, prices of a file."""

import pandas as pd
import pytest
from support.sheets import assert_within

import kvsim
from kvsim.cli import main
from kvsim.commands.deployments import every_deployment, to_confirm
from kvsim.reports.figures.style import STYLES
from kvsim.reports.figures.swept.fleet import fleet
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.sweeps import Sought

SLO = "ttft:p99=1s,tpot:p99=60ms"


@pytest.fixture
def prices(tmp_path):
    """Prices of three GPUs by hand."""
    path = tmp_path / "mine.toml"
    text = 'date = "2026-01-02"\ncurrency = "EUR"\n'
    path.write_text(
        text + "".join(f"[{gpu}]\nper_hour = {p}\n" for gpu, p in (("l4", 0.5), ("l40s", 1), ("h100", 3)))
    )
    return str(path)


def row(price, *, rough=True, status="met", clock="roofline"):
    return {"status": status, "rough": rough, "fleet_price_per_hour": price, "cost.clock": clock}


def test_candidates_are_what_fits_the_memory(prices):
    found = every_deployment({"model": "llama-3.1-70b", "gpu": "all", "slo": SLO, "gpu_price": prices})
    kept = {(run.point.settings["gpu"], run.point.settings["tensor_parallel_size"]) for run in found.runs}
    assert kept == {("l40s", 4), ("l40s", 8), ("h100", 2), ("h100", 4), ("h100", 8), ("l4", 8)}
    large = every_deployment({"model": "deepseek-v3", "gpu": "all", "slo": SLO, "gpu_price": prices})
    stages = {(p.settings["gpu"], p.settings.get("pipeline_parallel_size", 1)) for p in large.points}
    assert ("h100", 2) in stages and ("h100", 1) not in stages, "no node holds it, two do"


def test_the_cheapest_are_confirmed_until_no_other_can_be_cheaper():
    assert to_confirm([row(1.0), row(1.5), row(2.0)]) == [0, 1]
    assert to_confirm([row(1.6, rough=False), row(1.5), row(2.0)]) == [1]
    assert to_confirm([row(1.0, rough=False), row(1.5), row(None, status="unmet")]) == []
    assert to_confirm([row(9.0, rough=False)] * 6 + [row(1.0)]) == []
    apart = [row(1.0, rough=False), row(2.0), row(3.0, clock="measured"), row(4.0, clock="measured")]
    assert to_confirm(apart) == [2, 3], "what is cheap on one clock says nothing of another"


def test_prices_of_a_file_and_those_that_ship(prices, tmp_path):
    assert Goals(gpu_price=prices).price_of("l40s") == 1
    assert Goals(gpu_price=prices).prices_from == "mine.toml (EUR, 2026-01-02)"
    listed = Goals(gpu_price="listed")
    assert 0 < listed.price_of("l4") < listed.price_of("h100") < listed.price_of("b200")
    assert listed.prices_from.startswith("listed prices (USD, 20")
    (tmp_path / "bad.toml").write_text("[h100]\nper_hour = -1\n")
    with pytest.raises(kvsim.KvsimError, match="per_hour of h100 must be at least 0"):
        Goals(gpu_price=str(tmp_path / "bad.toml"))


def test_a_margin_is_a_percentage_and_needs_a_rate():
    assert Sought(for_rate=2.0, margin="20%").margin_share == 0.2
    for margin in ("20", "-5%", "x%"):
        with pytest.raises(kvsim.KvsimError, match="margin must be a percentage"):
            Sought(for_rate=2.0, margin=margin)
    with pytest.raises(kvsim.KvsimError, match="margin must be left out without for_rate"):
        Sought(margin="20%")


@pytest.mark.slow
def test_one_command_sizes_a_deployment(prices, tmp_path, capsys):
    asked = ["--model", "llama-3.1-8b", "--slo", SLO, "--num-prompts", "60", "--seeds", "2", "--jobs", "1"]
    asked += ["--gpu-price", prices, "--tolerance", "0.2", "--tensor-parallel-size", "1"]
    assert main(["capacity", *asked, "--gpu", "all"]) == 2
    assert "for_rate must be given with gpu all" in capsys.readouterr().err
    out = tmp_path / "out"
    asked += ["--for-rate", "12", "--margin", "20%", "--out", str(out)]
    assert main(["capacity", *asked, "--gpu", "all"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "12 requests/s and 20 % more within" in said and "cheapest with" in said
    assert "Prices per hour: mine.toml (EUR, 2026-01-02)" in said and "not validated" in said
    table = pd.read_parquet(out / "table.parquet")
    assert table.fleet_price_per_hour.dropna().is_monotonic_increasing
    assert not table.rough[0], "the answer is confirmed"
    first = table.iloc[0]
    assert first.fleet_servers == -(-12 * 1.2 // first.requests_per_s)
    assert (table.requests_per_s.dropna() <= 14.4).all(), "a server that carries all is asked for no more"
    assert table.at_least.any()
    for style in STYLES.values():
        figure = fleet(table.to_dict("records"), list(table.gpu), "", ["Assumed"], style)
        assert figure.axes[0].get_xlabel().startswith("price per hour of the fleet")
        assert_within(figure)
    assert (out / "capacity.png").exists()
