"""Which text can be found on a server that speculates: blocks whose tokens are verified.

block | block | block | . .        verified
        `----------------'         its hash may also cover later tokens, which must be verified too
"""

from kvsim.allocators.protocols import Prefixes
from kvsim.sim.serving.draft_records import DraftRules, Seen


class VerifiedText:
    """Publishes the verified text of requests, a block at a time."""

    def __init__(self, prefixes: Prefixes, rules: DraftRules, block: int) -> None:
        self._prefixes, self._block, self._lookahead = prefixes, block, rules.hash_lookahead
        self._late = max(rules.kept_back - 1, 0)  # the last computed tokens, not hashed yet

    def publish(self, seq: int, seen: Seen, computed: int) -> None:
        """Publish what is verified of a sequence, of which `computed` tokens are computed."""
        tokens = seen.tokens
        full = (tokens if computed > tokens else computed) - self._late
        if full > tokens - self._lookahead:
            full = tokens - self._lookahead
        if full >= seen.published:
            seen.published = full - full % self._block + self._block
            self._prefixes.fill(seq, full)
