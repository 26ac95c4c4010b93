"""Whether a run met its goals: attainment, goodput, numbers per GPU and the cost of tokens.

    good request     finished, and within every per-request limit;
                     if all limits are quantiles, within each of them
    attained share   good requests / submitted requests
    goodput          good requests / duration

as defined by `vllm bench serve --goodput` and AIPerf. A limit with a quantile is met if that quantile over
the finished requests is within it, and no more requests were rejected than the quantile allows. A limit
without a quantile is met if every request is within it. Rejected requests are never within a limit.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kvsim.sim.record.slo import Limit, Slo

Numbers = Mapping[str, npt.NDArray[np.generic]]
SECONDS_PER_HOUR = 3600


def attained(  # noqa: PLR0917 - the parts of a run
    slo: Slo | None,
    price: float | None,
    table: Numbers,
    throughput: Mapping[str, float | None],
    duration_s: float,
    gpus: float,
) -> dict[str, object]:
    """The sections `slo`, `per_gpu` and `price` of a summary, if requested.

    Parameters
    ----------
    slo : Slo, optional
        The limits.
    price : float, optional
        Per GPU and hour, the mean if GPUs differ.
    table : mapping
        The table of requests.
    throughput : mapping
        The section `throughput` of the summary.
    gpus : float
        Number of GPUs of all replicas, or mean number of those billed.
    """
    found: dict[str, object] = {}
    if slo is not None:
        found["slo"] = judged(slo, table, duration_s, gpus)
    if slo is not None or price is not None:
        found["per_gpu"] = {"gpus": gpus} | {
            name: None if value is None else value / gpus for name, value in throughput.items()
        }
    if price is not None:
        found["price"] = {
            "per_gpu_hour": price,
            "per_hour": price * gpus,
            "per_million_output_tokens": _per_million(price * gpus, throughput["output_tokens_per_s"]),
            "per_million_tokens": _per_million(price * gpus, throughput["total_tokens_per_s"]),
        }
    return found


def judged(slo: Slo, table: Numbers, duration_s: float, gpus: float) -> dict[str, object]:
    """The section `slo` of a summary, for the requests of a table."""
    done = table["status"] != "rejected"
    good = good_requests(slo, table)
    rate = float(good.sum()) / duration_s if duration_s else None
    limits = {limit.name: _limit(limit, table, done) for limit in slo.limits}
    return {
        "limits": str(slo),
        "met": all(bool(each["met"]) for each in limits.values()),
        "attained_share": float(good.mean()) if len(good) else None,
        "goodput_requests_per_s": rate,
        "goodput_requests_per_s_per_gpu": None if rate is None else rate / gpus,
        "by_limit": limits,
    }


def good_requests(slo: Slo, table: Numbers) -> npt.NDArray[np.bool_]:
    """Which requests of a table finished and are within every per-request limit."""
    good: npt.NDArray[np.bool_] = table["status"] != "rejected"
    for limit in slo.of_each:
        good = good & _within(limit, table)
    return good


def _limit(limit: Limit, table: Numbers, done: npt.NDArray[np.bool_]) -> dict[str, object]:
    """One limit: the measured value, the share of all requests within it, whether it is met."""
    values = np.asarray(table[limit.column], dtype=np.float64)[done]
    within = float(_within(limit, table).mean()) if len(done) else None
    measured_s = None
    if len(values):
        measured_s = float(values.max() if limit.quantile is None else np.quantile(values, limit.quantile))
    least = 1.0 if limit.quantile is None else limit.quantile
    return {
        "limit_s": limit.limit_s,
        "measured_s": measured_s,
        "within_share": within,
        "met": measured_s is not None and measured_s <= limit.limit_s and float(done.mean()) >= least,
    }


def _within(limit: Limit, table: Numbers) -> npt.NDArray[np.bool_]:
    """Which requests are within a limit; rejected ones never are."""
    return np.asarray(table[limit.column], dtype=np.float64) <= limit.limit_s


def _per_million(per_hour: float, tokens_per_s: float | None) -> float | None:
    return per_hour / SECONDS_PER_HOUR / tokens_per_s * 1e6 if tokens_per_s else None
