"""Conversations: each turn repeats all earlier ones, after one of two system prompts."""

import numpy as np

from kvsim.sim.content import TextBuilder, shared_content
from kvsim.sim.workload import Workload


def turns():
    """Forty requests of eight conversations, all at once."""
    rng = np.random.default_rng(5)
    builder, prompts, answers, said = TextBuilder(), [], [], dict.fromkeys(range(8), 0)
    for who in rng.integers(0, 8, 40):
        prompts.append(150 + said[who] + int(rng.integers(1, 40)))
        answers.append(int(rng.integers(20, 200)))
        segments = [(f"system {who % 2}", 150), (f"said {who}", said[who])]
        builder.add(prompts[-1], answers[-1], segments=segments, session=f"said {who}")
        said[who] = (prompts[-1] + answers[-1] - 150) if prompts[-1] < 600 else 0
    lengths = np.array(prompts), np.array(answers)
    content = shared_content(builder.texts(), lengths[0], np.zeros(40, dtype=bool))
    return Workload("test", np.zeros(40, dtype=np.int64), *lengths, content=content)
