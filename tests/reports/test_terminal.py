"""What the terminal says about fixed numbers, compared whole at 80 columns without colour."""

import copy
from io import StringIO

import pytest
from rich.console import Console
from support.fake_run import fake_run
from support.summaries import BUDDY, CONTIGUOUS, PAGED, plain

from kvsim.reports import terminal
from kvsim.reports.headline import headline, verdict
from kvsim.reports.terminal import report_table, run_table

RUN = """\
paged served 1,000 requests in 512.8 s: 1.95 requests/s, 649 output tokens/s; KV
memory 95.1 % tokens, 3.9 % waste over the whole run, 96.1 % and 3.9 % while
requests waited (93 % of the time).

████████████████████████████████████████████████████████████████████████████▚▚▓·
█ token 95.1 %   ▚ internal 2.3 %   ▓ external 1.6 %   · free 1.0 %

latency                            mean    p50    p90    p95    p99    max
──────────────────────────────────────────────────────────────────────────
TTFT, time to first token (s)      5.00   5.00   9.00   9.50   9.90   15.0
TPOT, time per output token (ms)   50.0   50.0   90.0   95.0   99.0    150
ITL, time between tokens (ms)      50.0   50.0   90.0   95.0   99.0    150
E2E, end-to-end latency (s)        5.00   5.00   9.00   9.50   9.90   15.0
normalised latency (ms/token)      50.0   50.0   90.0   95.0   99.0    150
queueing delay (s)                 5.00   5.00   9.00   9.50   9.90   15.0

KV memory, 15,744 tokens               whole run   requests waited (93 % of it)
───────────────────────────────────────────────────────────────────────────────
token: holds a key and value              95.1 %                         96.1 %
reserved: empty, will be written           0.0 %                          0.0 %
internal: empty, never written             2.3 %                          2.3 %
external: free, in pieces too small        1.6 %                          1.6 %
cached: prefix that may be hit again       0.0 %                          0.0 %
free: room for the next request            1.0 %                          0.0 %

engine     vllm_v0 on paged: 12,345 steps, 30.4 requests at once on average, 32
           at most
counted    4 preemptions (recomputed); peak used tokens 15,740
clock      calibrated: NVIDIA A100, 2026-01-05
           3.4 % of the time extrapolated; not validated
simulated  in 50.0 ms of CPU, 20,000 requests/CPU-s"""

COMPARISON = """\
                           contiguous      buddy       paged
────────────────────────────────────────────────────────────
requests finished               1,000      1,000       1,000
requests/s                      0.525      0.774      1.95 *
output tokens/s                   175        258       649 *
requests at once, mean           7.00       9.81        30.4
requests at once, most              9         12        32 *

tokens in KV memory            19.6 %     25.8 %    95.1 % *
tokens, requests waiting       20.6 %     26.8 %    96.1 % *
total waste                    79.4 %     73.2 %     3.9 % *
  reserved                     13.3 %     17.9 %       0.0 %
  internal                     57.2 %     13.7 %       2.3 %
  external                      8.9 %     41.6 %       1.6 %
waste, requests waiting        79.4 %     73.2 %     3.9 % *

TTFT p50                        150 s     70.0 s    5.00 s *
TTFT p99                        297 s      139 s    9.90 s *
normalised latency, mean       1.50 s     700 ms   50.0 ms *
preemptions                         4          4           4
* best of its row; memory: means of the whole run

paged holds 4.3 times as many requests at once as contiguous and finishes 3.7
times as many per second; waste 3.9 % against 79.4 % while requests waited.

clock: calibrated: NVIDIA A100, 2026-01-05; 3.4 % of the time extrapolated; not
validated"""


def test_the_report_of_a_run():
    assert plain(run_table([PAGED])) == RUN


def with_sharing():
    """PAGED with a prefix cache, forks and swaps: 170 prompt tokens for each of the 1,000 requests."""
    run = copy.deepcopy(PAGED)
    run["throughput"]["total_tokens_per_s"] = run["throughput"]["output_tokens_per_s"] + 170_000 / (
        1000 / 1.95
    )
    run["memory"]["saved_by_sharing"] = 53.74
    run["memory"]["average"] |= {"token": 65.1, "cached": 30.0}
    run["engine"] |= {"prefix_hit_tokens": 127_500, "cow_copies": 1410, "preemptions_swap": 7}
    run["engine"] |= {"swapped_in_blocks": 300, "swapped_out_blocks": 310}
    return run


def test_hits_copies_and_swaps_have_lines_of_their_own_where_there_are_any():
    lines = plain(run_table([with_sharing()])).splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("counted"))
    assert lines[first : first + 4] == [
        "counted    4 preemptions (recomputed); peak used tokens 15,740",
        "prefixes   127,500 tokens were found in the prefix cache, 75.0 % of the prompts",
        "shared     saves 53.7 % of the memory on average; 1,410 blocks copied on write",
        "swapped    7 times; 310 blocks to the host, 300 back",
    ]
    assert "+ cached 30.0 %" in "\n".join(lines)


def test_prompts_that_were_found_more_than_once_have_no_share():
    run = with_sharing()
    run["engine"]["prefix_hit_tokens"] = 500_000
    lines = plain(run_table([run])).splitlines()
    assert "prefixes   500,000 tokens were found in the prefix cache" in lines


def test_a_comparison_has_rows_for_sharing_where_there_is_any():
    lines = plain(report_table([[with_sharing(), CONTIGUOUS]], compared=True)).splitlines()
    for row in (
        "cached prefixes               30.0 %        0.0 %",
        "preemptions                       11          4 *",
        "sharing saves, whole run    53.7 % *        0.0 %",
        "prefix hits, tokens          127,500            -",
    ):
        assert row in lines


def test_the_comparison_of_three_runs():
    assert plain(report_table([[CONTIGUOUS, BUDDY, PAGED]], compared=True)) == COMPARISON


def test_a_terminal_gets_colours_and_full_blocks():
    coloured = plain(run_table([PAGED]), force_terminal=True, color_system="truecolor")
    assert "\x1b[38;2;0;114;178m" + "█" * 76 in coloured
    assert "▚" not in coloured


def test_an_output_without_unicode_gets_ascii():
    console = Console(width=80, file=_AsciiFile())
    console.print(run_table([PAGED]))
    assert console.file.getvalue().isascii()


class _AsciiFile(StringIO):
    encoding = "ascii"


def test_many_runs_make_several_tables_with_one_best():
    runs = [copy.deepcopy(CONTIGUOUS) | {"label": f"contiguous-{i}"} for i in range(7)] + [PAGED]
    lines = plain(report_table([runs], compared=True)).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("requests/s") for line in lines) == 3
    assert sum(line.count("*") for line in lines if line.startswith("requests/s")) == 1


@pytest.mark.parametrize("how", [{"requests": 0}, {"requests": 1}, {"requests": 4, "rejected": 4}])
def test_every_run_can_be_told(how):
    made = fake_run(**how)["summary"]
    assert plain(run_table([made]))
    assert plain(report_table([[made, PAGED]], compared=True))


def test_labels_are_no_markup():
    run = PAGED | {"label": "[/bold]:smile:"}
    assert "[/bold]:smile:" in plain(run_table([run]))
    assert "[/bold]:smile:" in plain(report_table([[run, BUDDY]], compared=True))


def test_the_headline_says_how_many_were_turned_away_and_that_nobody_waited():
    run = copy.deepcopy(PAGED)
    run["requests"] |= {"finished": 988, "rejected": 12}
    run["memory"]["saturated"] = None
    assert headline([run]) == (
        "paged served 988 of 1,000 requests in 512.8 s: 1.95 requests/s, 649 output tokens/s; "
        "KV memory 95.1 % tokens, 3.9 % waste over the whole run (no request ever waited)."
    )
    run["requests"] = {"submitted": 1, "finished": 0, "rejected": 1}
    assert headline([run]) == "paged served 0 of 1 request."


def test_the_verdict_compares_the_best_with_the_worst():
    assert verdict([PAGED, BUDDY, CONTIGUOUS]) == (
        "paged holds 4.3 times as many requests at once as contiguous and finishes 3.7 times as many "
        "per second; waste 3.9 % against 79.4 % while requests waited."
    )


def test_at_equal_throughput_the_verdict_is_on_latency():
    slow = copy.deepcopy(CONTIGUOUS)
    slow["throughput"] = PAGED["throughput"]
    assert verdict([PAGED, slow]) == (
        "All finish about 1.95 requests/s; paged takes 50.0 ms per token, contiguous 1.50 s; "
        "waste 3.9 % against 79.4 % while requests waited."
    )


def test_equal_runs_have_no_best():
    twins = [PAGED, PAGED | {"label": "twin"}]
    assert verdict(twins) == (
        "All finish about 1.95 requests/s and take about 50.0 ms per token; "
        "waste 3.9 % against 3.9 % while requests waited."
    )
    assert plain(report_table([twins], compared=True)).count("*") == 1  # the legend


def test_a_note_of_some_runs_names_them():
    runs = [PAGED | {"notes": ["Shared.", "Own."]}, BUDDY | {"notes": ["Shared."]}]
    lines = plain(report_table([runs], compared=True)).splitlines()
    assert lines[-2:] == ["note: Shared.", "note: paged: Own."]


def test_a_verdict_needs_two_runs_that_finished_something():
    empty = {**fake_run(requests=0)["summary"], "label": "none"}
    assert verdict([empty]) == "No request finished in any run."
    assert verdict([empty, PAGED]) == f"{headline([PAGED])} Not ranked, with fewer requests served: none."


def test_the_spread_of_bytes_and_shares_has_their_unit():
    seeds = [{"tier": {"bytes": gib * 2**30, "share": share}} for gib, share in ((2.0, 0.2), (4.0, 0.4))]
    assert terminal._filled(seeds, "tier", "{bytes:GiB}").startswith("3 ± 1")
    assert terminal._filled(seeds, "tier", "{share:share}").startswith("30 ± 1")
