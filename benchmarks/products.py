"""How well matrix products are interpolated between token counts, depending on how tiles are counted.

    python benchmarks/products.py [--tables ../shared/data/gpu_tables]

The tables are reference data beside the checkout: the products of a layer on A100 and H100 (microsoft/vidur).
The calibration's form is fitted to 13 token counts of each table's four products, the ratio is interpolated
between them, and the error is measured at all other token counts. Counting just whole tiles of 128 rows is
compared with counting waves (kernels/calibration/form.py), and with tiles of as many rows as the fit chooses,
which a calibration has.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

sys.path[0] = str(Path(__file__).resolve().parents[1])

from kvsim.kernels.calibration.assemble import PRODUCT_TILES  # noqa: E402
from kvsim.kernels.calibration.fit import Bounds, Measured, candidates, fit_form  # noqa: E402
from kvsim.kernels.calibration.form import form_s, interpolate  # noqa: E402
from kvsim.kernels.calibration.points import MAIN, Point, features  # noqa: E402

TABLE = "a100_h100_linear_ops_ms_per_layer.csv"
TABLES = Path(__file__).resolve().parents[2] / "shared" / "data" / "gpu_tables"
TOKENS = (1, 16, 32, 64, 72, 128, 136, 256, 264, 512, 1024, 2048, 4096)
"""Token counts near those that a calibration measures; the tables have every eighth count."""
MULTIPROCESSORS = {"h100": 132, "a100": 108}
SHAPES = {
    "Llama-2-7b": {
        "attn_pre_proj": (4096, 12_288),
        "attn_post_proj": (4096, 4096),
        "mlp_up_proj": (4096, 22_016),
        "mlp_down_proj": (11_008, 4096),
    },
    "Meta-Llama-3-8B": {
        "attn_pre_proj": (4096, 6144),
        "attn_post_proj": (4096, 4096),
        "mlp_up_proj": (4096, 28_672),
        "mlp_down_proj": (14_336, 4096),
    },
}
"""Inputs and outputs of the products."""


def products(rows: list[dict[str, str]], device: str, model: str) -> list[Measured]:
    """Every product of a table as a measured point."""
    found = []
    for row in rows:
        if (row["device"], row["model"]) != (device, model):
            continue
        for name, (inputs, outputs) in SHAPES[model].items():
            x = {"tokens": int(row["num_tokens"]), "inputs": inputs, "outputs": outputs}
            seconds = float(row[name]) / 1000
            found.append(Measured(Point("product", x, "grid", MAIN, x), seconds, seconds, seconds, 1))
    return found


def errors(measured: list[Measured], constants: dict[str, float]) -> np.ndarray:
    """|predicted / measured - 1| for the token counts outside the fit."""
    fitted = [one for one in measured if one.point.x["tokens"] in TOKENS]
    ways = [(*fit_form(fitted, one, Bounds()), one) for one in candidates(constants)]
    form, _, constants = min(ways, key=lambda way: way[1])

    def predicted(one: Measured) -> float:
        return form_s(form, *features(one.point, constants)[:2])

    tables = {}
    for one in fitted:
        shape = one.point.x["inputs"], one.point.x["outputs"]
        tables.setdefault(shape, {})[one.point.x["tokens"]] = one.median_s / predicted(one)
    found = []
    for one in measured:
        x = one.point.x
        if x["tokens"] in TOKENS or x["tokens"] > max(TOKENS):
            continue
        ratios = dict(sorted(tables[x["inputs"], x["outputs"]].items()))
        axis = {"name": "tokens", "offset": 0, "values": list(ratios)}
        ratio = interpolate({"axes": [axis], "ratio": list(ratios.values())}, x)
        found.append(abs(predicted(one) * ratio / one.median_s - 1))
    return np.array(found)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=Path, default=TABLES, help="where the tables are")
    with (parser.parse_args().tables / TABLE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    heads = f"{'table':24}{'points':>8}{'tiles of 128':>16}{'and waves':>16}{'rows by fit':>16}"
    print(f"{heads}   mean, 90th percentile")
    for device, model in (("h100", "Llama-2-7b"), ("a100", "Llama-2-7b"), ("a100", "Meta-Llama-3-8B")):
        measured = products(rows, device, model)
        fitted = {**PRODUCT_TILES, "multiprocessors": MULTIPROCESSORS[device]}
        waves, cells, count = fitted | {"token_tile": 128}, "", 0
        for constants in (waves | {"whole_waves": 0}, waves, fitted):
            some = errors(measured, constants)
            count = len(some)
            cells += f"{100 * some.mean():8.1f} %{100 * np.quantile(some, 0.9):5.1f} %"
        print(f"{device} {model:19}{count:8}{cells}")


if __name__ == "__main__":
    main()
