"""Synthetic sessions of coding agents: an offline stand-in for cc-traces.

    session    system prompt + tools, the same for all    16,000 tokens
    request    the whole context so far, some new tokens (a tool's result, a question), a short answer
    subagent   occasionally: its own context, behind the same system prompt; the parent waits for it

Fitted by hand to published data on cc-traces: prompts of 43,000, 110,000 and 300,000 tokens at p10, p50 and
p90, answers of 103, 218 and 937, and hits of about 96 % within a session. Real sessions also rewrite their
contexts and share more than the system prompt; neither is modelled. There are always the same 40 sessions.
"""

import numpy as np

from kvsim.sim.content import Texts
from kvsim.workloads.lengths import Lengths

SEED = 2026
SESSIONS = 40
SYSTEM_TOKENS = 16_000
START = 24_000, 0.8, 0.8
"""Median, and sigmas below and above it, of a session's or subagent's initial tokens (lognormal)."""
SUB_START = 20_000, 0.7, 0.7
ANSWER = 218, 0.58, 1.14
NEW = 1_500, 1.2, 1.2
TURNS = 48, 0.7, 0.7
SUB_TURNS = 10, 0.6, 0.6
SUBAGENT = 0.04
"""Probability of a subagent before a request."""
TOOLS_S = 3.0, 1.4
MOST_TOKENS = 500_000
BETWEEN_S = 45.0
"""Mean time between the starts of sessions."""
ANSWER_S = 0.02
"""Assumed seconds per answer token, for the arrivals."""
SYSTEM = 0


class _Drawn:
    """Collects the requests of all sessions."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)
        self.rows: list[tuple[float, int, int, str, str, int, float, int]] = []
        self.streams = SYSTEM + 1

    def some(self, of: tuple[float, float, float]) -> int:
        """An integer of at least 1, from a two-sided lognormal."""
        chance = float(self.rng.standard_normal())
        return max(round(of[0] * float(np.exp(of[1 if chance < 0 else 2] * chance))), 1)

    def agent(self, session: str, agent: str, begun_s: float, after: int) -> tuple[int, float]:
        """Draw the requests of a session or subagent; returns the last request and when it is answered."""
        stream, self.streams = self.streams, self.streams + 1
        told = self.some(SUB_START if agent else START)
        now, before = begun_s, after
        for turn in range(self.some(SUB_TURNS if agent else TURNS)):
            delay = 0.0 if before < 0 else float(TOOLS_S[0] * np.exp(TOOLS_S[1] * self.rng.standard_normal()))
            if not agent and turn and self.rng.random() < SUBAGENT:
                before, now = self.agent(session, f"subagent-{len(self.rows)}", now, before)
            now += delay
            answer = self.some(ANSWER)
            self.rows.append((now, SYSTEM_TOKENS + told, answer, session, agent, before, delay, stream))
            before = len(self.rows) - 1
            now += ANSWER_S * answer
            told += answer + self.some(NEW)
            if SYSTEM_TOKENS + told > MOST_TOKENS:
                break
        return before, now


def load_lengths() -> Lengths:
    """All requests, in order of arrival."""
    drawn, begun = _Drawn(), 0.0
    for number in range(SESSIONS):
        drawn.agent(f"session-{number}", "", begun, -1)
        begun += float(drawn.rng.exponential(BETWEEN_S))
    columns = list(zip(*drawn.rows, strict=True))
    order = np.argsort(np.array(columns[0]), kind="stable")
    prompt, output = (np.array(columns[place], dtype=np.int64)[order] for place in (1, 2))
    n = len(order)
    streams = np.stack([np.full(n, SYSTEM), np.array(columns[7], dtype=np.int64)[order]], axis=1)
    lengths = np.stack([np.full(n, SYSTEM_TOKENS), prompt - SYSTEM_TOKENS + output], axis=1)
    texts = Texts(np.arange(n + 1) * 2, streams.ravel(), np.zeros(2 * n, dtype=np.int64), lengths.ravel())
    return Lengths(
        "agents",
        prompt,
        output,
        ("Sessions of coding agents, drawn: a stand-in for cc-traces.",),
        arrival_s=np.array(columns[0])[order],
        texts=texts,
        labels={
            "session": np.array(columns[3], dtype=object)[order],
            "agent": np.array(columns[4], dtype=object)[order],
            "call": np.arange(n)[order],
            "after": np.array(columns[5], dtype=np.int64)[order],
            "delay_s": np.array(columns[6])[order],
        },
    )
