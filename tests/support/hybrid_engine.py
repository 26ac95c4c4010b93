"""A scheduler of vLLM V1 over the hybrid cache alone, to compare with the recordings in goldens/hybrid.

It follows `specs/engines.md` (0.33.0): one loop, no clock. Step k schedules, then a token appears for every
sequence whose known tokens are all computed. It drives `HybridCache` as the simulator's engine will.
"""

from collections import deque
from dataclasses import dataclass, field

from kvsim.allocators.hybrid import HybridCache, Text

GENERATED = 10_000_000


@dataclass(eq=False)
class Running:
    """A request, its text, and its progress."""

    id: int
    arrival: int
    prompt: list
    output: int
    text: Text
    tokens: list
    computed: int = 0
    in_flight: int = 0
    placeholders: int = 0
    furthest: int = 0
    prefill_until: int = 0
    finished: int | None = None
    preemptions: int = 0
    first_scheduled: int | None = None
    first_token: int | None = None
    stale: int = 0
    log: dict = field(default_factory=dict)


class HybridEngine:
    """All requests of a workload under one configuration; `detailed`: records all tables and queues."""

    def __init__(self, cache: HybridCache, requests, config, detailed=True):
        self.cache, self.config, self.detailed = cache, config, detailed
        self.coming = deque(sorted((self._request(row) for row in requests), key=lambda r: (r.arrival, r.id)))
        self.waiting, self.running, self.done = deque(), [], []
        self.preemptions = self.copies = 0
        self.steps, self.details, self.group_rows = [], [], []
        self._chain = {}

    def _request(self, row):
        prompt = row.get("prompt_ids") or [row["id"] * 4096 + j for j in range(row["prompt_len"])]
        text = Text(row["id"], len(prompt), len(prompt))
        return Running(row["id"], row["arrival"], prompt, row["output_len"], text, list(prompt))

    def _know(self, request):
        """Keys of all hash blocks that are full of known tokens: equal keys, equal texts."""
        size, text = self.cache.hash_size, request.text
        text.tokens = len(request.tokens)
        while (len(text.keys) + 1) * size <= len(request.tokens):
            at = len(text.keys) * size
            before = text.keys[-1] if text.keys else 0
            link = (before, tuple(request.tokens[at : at + size]))
            text.keys.append(self._chain.setdefault(link, len(self._chain) + 1))

    def run(self):
        """Run to the end: the columns of every step."""
        step, update = 0, None
        asynchronous = self.config["async_scheduling"]
        while self.coming or self.waiting or self.running or update:
            while self.coming and self.coming[0].arrival <= step:
                request = self.coming.popleft()
                self._know(request)
                self.waiting.append(request)
            scheduled, row, detail = self._schedule(step)
            self.steps.append(row)
            self.group_rows.append(self._groups())
            if asynchronous:
                finished = self._update(*update) if update else []
                update = (step, scheduled) if scheduled else None
            else:
                finished = self._update(step, scheduled)
            row["finished"] = len(finished)
            row["running_end"], row["waiting_end"] = len(self.running), len(self.waiting)
            row["blocks_in_use_end"] = self.cache.blocks_in_use
            row["hash_entries_end"] = self.cache.pool.entries
            if self.detailed:
                detail["finished"] = [request.id for request in finished]
                detail["free_queue_end"] = self.cache.pool.queue()
                self.details.append(detail)
            step += 1

    # -- one step ------------------------------------------------------------------------------------

    def _schedule(self, step):
        self.cache.new_step()
        self.budget, self.scheduled, self.admitted, self.preempted = (
            self.config["max_num_batched_tokens"], [], [], [],
        )  # fmt: skip
        self._continue()
        hits = self._admit(step) if not self.preempted else 0
        copies = self.cache.take_copies()
        self.copies += len(copies)
        row = self._row(self.scheduled, hits)
        detail = self.detailed and {
            "step": step,
            "scheduled": [[request.id, tokens, start] for request, tokens, start in self.scheduled],
            "admitted": self.admitted,
            "preempted": [request.id for request in self.preempted],
            "running_order": [request.id for request in self.running],
            "waiting_order": [request.id for request in self.waiting],
            "tables": {str(request.id): self.cache.tables(request.id) for request in self.running},
            "free_queue": self.cache.pool.queue(),
            "copies": [list(pair) for pair in copies],
        }
        under_way = [
            (request, tokens, self._advance(request, tokens)) for request, tokens, _ in self.scheduled
        ]
        return under_way, row, detail

    def _continue(self):
        """Schedule the running requests, first come first served, as far as the budget reaches."""
        index = 0
        while index < len(self.running) and self.budget > 0:
            request = self.running[index]
            index += 1
            tokens = self._next(request)
            if tokens == 0:
                continue
            if not self._room(request, tokens):
                return
            self.scheduled.append((request, tokens, request.computed))
            self.budget -= tokens

    def _next(self, request):
        """Tokens that the request computes now; 0 if its last is in flight or no piece can end here."""
        length = len(request.prompt) + request.output
        if request.placeholders > 0 and request.computed + 2 - request.placeholders >= length:
            return 0
        tokens = len(request.tokens) + request.placeholders - request.computed
        tokens = min(tokens, self.budget, self.config["max_model_len"] - request.computed - 1)
        return self._piece(request, request.computed, tokens)

    def _room(self, request, tokens):
        """Whether there are blocks for it, after preempting the last running requests if necessary."""
        settled = max(0, request.computed - request.in_flight)
        while not self.cache.place(request.text, request.computed, tokens, settled=settled):
            victim = self.running.pop()
            self._preempt(victim)
            self.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _admit(self, step):
        """Admit waiting requests in order until one does not fit; returns the tokens hit."""
        hits = 0
        while self.waiting and self.budget > 0 and len(self.running) < self.config["max_num_seqs"]:
            request = self.waiting[0]
            hit = self.cache.lookup(request.text)
            request.text.junction = hit.junction
            tokens = self._piece(request, hit.tokens, min(len(request.tokens) - hit.tokens, self.budget))
            fits = tokens > 0 and self.cache.place(
                request.text,
                hit.tokens,
                tokens,
                hit=hit,
                whole=self.config["scheduler_reserve_full_isl"],
                spare=self._watermark(),
            )
            if not fits:
                break
            self.waiting.popleft()
            self.running.append(request)
            request.computed, request.prefill_until = hit.tokens, len(request.tokens)
            if request.first_scheduled is None:
                request.first_scheduled = step
            hits += hit.tokens
            self.admitted.append([request.id, hit.tokens, request.text.junction])
            self.scheduled.append((request, tokens, hit.tokens))
            self.budget -= tokens
        return hits

    def _advance(self, request, tokens):
        """The tokens are in flight: whether they will yield a new one."""
        request.computed += tokens
        request.in_flight += tokens
        request.furthest = max(request.furthest, request.computed)
        yields = request.computed >= len(request.tokens) + request.placeholders
        if yields and self.config["async_scheduling"]:
            request.placeholders += 1
        return yields

    def _piece(self, request, start, tokens):
        most = self.config["max_num_batched_tokens"]
        return self.cache.piece(request.text, start, max(0, tokens), most_tokens=most)

    def _watermark(self):
        share = self.config.get("watermark") or 0
        return int(share * (self.cache.pool.blocks + 1)) if self.running else 0

    def _row(self, scheduled, hits):
        now = {request: tokens for request, tokens, _ in scheduled}
        prefills = [each for each in scheduled if each[2] < each[0].prefill_until]
        decodes = [each for each in scheduled if each[2] >= each[0].prefill_until]
        return {
            "running": len(self.running),
            "waiting": len(self.waiting),
            "preemptions_cum": self.preemptions,
            "blocks_in_use": self.cache.blocks_in_use,
            "prefill_tokens": sum(tokens for _, tokens, _ in prefills),
            "decode_tokens": sum(tokens for _, tokens, _ in decodes),
            "prefill_reqs": len(prefills),
            "decode_reqs": len(decodes),
            "hit_tokens": hits,
            "recomputed_tokens": sum(
                max(0, min(request.furthest, start + tokens) - start) for request, tokens, start in prefills
            ),
            "kv_tokens": sum(request.computed + now.get(request, 0) for request in self.running),
        }

    def _groups(self):
        """(blocks, non-null entries) of each group's tables."""
        rows = []
        for tables in self.cache.groups:
            entries = [block for table in tables.tables.values() for block in table if block]
            rows.append((len(set(entries)), len(entries)))
        return rows

    def _preempt(self, request):
        self.cache.release(request.id)
        request.stale += request.in_flight
        request.computed = 0
        request.placeholders = 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _update(self, step, scheduled):
        finished = []
        for request, tokens, yields in scheduled:
            request.in_flight -= tokens
            stale = request.stale > 0
            request.stale -= tokens if stale else 0
            if not yields or request.finished is not None:
                continue
            request.placeholders -= 1 if request.placeholders and not stale else 0
            request.tokens.append(GENERATED + request.id * 4096 + len(request.tokens) - len(request.prompt))
            self._know(request)
            if request.first_token is None:
                request.first_token = step
            if self.config["async_scheduling"] and self.cache.caching and not stale:
                self.cache.remember(request.text, request.computed - request.in_flight)
            if len(request.tokens) - len(request.prompt) == request.output:
                request.finished = step
                finished.append(request)
        for request in finished:
            for queue in (self.running, self.waiting):
                if request in queue:
                    queue.remove(request)
            self.cache.release(request.id)
            self.done.append(request)
        return finished
