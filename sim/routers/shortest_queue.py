"""Join the shortest queue, as in Splitwise: the fewest pending tokens; for decoding, the emptiest memory.

All tokens of a prompt are pending until its step has ended, and each decoding request counts as one. So no
request is sent behind a long prompt that is being computed.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request, State


class ShortestQueue(Router):
    """Chooses the fewest pending tokens; ties go to the first replica."""

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__(argument, rng, options)
        self._prompts: dict[int, list[Request]] = {}

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The replica, by tokens among servers that compute prompts, else by memory."""
        if replicas[0].role == "decode":
            used = [each.used_tokens for each in replicas]
            return used.index(min(used))
        loads = [self._pending(each.place) + each.running for each in replicas]
        found = loads.index(min(loads))
        self._prompts[replicas[found].place].append(request)
        return found

    def _pending(self, place: int) -> int:
        """Tokens of prompts that were sent there and are not yet computed."""
        sent = self._prompts.get(place, [])
        self._prompts[place] = left = [each for each in sent if each.state in (State.WAITING, State.PREFILL)]
        return sum([each.prompt_tokens for each in left])
