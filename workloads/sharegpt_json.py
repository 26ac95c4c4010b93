"""ShareGPT: conversations with chat assistants, as text in one large JSON array.

    [{"id": "QWJhYvA_0", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}, ...]

    first    the table that benchmarks use: the first question is the prompt, the first answer the output;
             without conversations that do not begin so, and lengths below 4 tokens
    all      every turn, its prompt the whole conversation so far

Long conversations come in chunks `QWJhYvA_0`, `QWJhYvA_13`. For `first` chunks are separate conversations, as
in the benchmarks. For `all` they are one session, in which a message that the next chunk repeats counts once.
Chat templates are ignored. Without a tokenizer, token counts are estimated.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.workloads.conversations import whole_prompts
from kvsim.workloads.json_stream import ObjectStream
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.usable import requests
from kvsim.workloads.values import shown

SPEAKERS = {
    "human": "human",
    "user": "human",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
}
"""Role in the file -> speaker."""

FEWEST_TOKENS = 4
"""Shorter prompts or outputs are left out of `first`, as in vLLM's and FastChat's scripts."""

TURNS = ("first", "all")

Count = Callable[[str], int]


class Message(NamedTuple):
    """A speaker and a text."""

    speaker: str
    text: str

    def digest(self) -> bytes:
        """A digest of the message that does not depend on Python's hash seed."""
        said = f"{self.speaker} {self.text}".encode(errors="surrogatepass")
        return blake2b(said, digest_size=16).digest()


CHARACTERS_PER_TOKEN = 4
"""Roughly what tokenizers give for English text."""

GUESSED = (
    f"Lengths are guessed, a token for every {CHARACTERS_PER_TOKEN} characters: --tokenizer FILE, a "
    "Hugging Face tokenizer.json, counts them."
)


def load_sharegpt(path: str, count: Count | None, turns: str = "first") -> Lengths:
    """The requests of a ShareGPT file, with lengths from `count`.

    Parameters
    ----------
    count : function of a text, or None
        Counts tokens with the model's tokenizer; None assumes one token per four characters, and a note says
        so.
    turns : str
        `first` takes the first question and answer of each conversation, `all` every turn, with everything
        before it in its prompt; the rows of a conversation are then adjacent, with `session` and `turn`.

    Raises
    ------
    KvsimError
        A file that cannot be read, or is not ShareGPT's. For a truncated file, the complete conversations are
        used and a note says so.
    """
    if turns not in TURNS:
        raise KvsimError(f"turns must be one of {', '.join(TURNS)}, got {turns!r}")
    notes = []
    if count is None:
        notes.append(GUESSED)
        count = _guess
    read = _first_turns if turns == "first" else _all_turns
    left_out: Counter[str] = Counter()
    try:
        with open(path, "rb") as file:
            stream = ObjectStream(path, file)
            found = read(_conversations(path, stream, left_out), _whatever_the_text(count), left_out)
    except OSError as error:
        raise KvsimError(f"trace {path} cannot be read: {error.strerror or error}") from error
    if stream.cut_off:
        notes.append(f"Warning: the file is cut off; its {stream.objects:,} whole conversations were read.")
    return requests(path, "ShareGPT", **found, left_out=left_out, notes=notes)


def _conversations(
    path: str, stream: ObjectStream, left_out: Counter[str]
) -> Iterator[tuple[str | None, list[Message]]]:
    """The id of each conversation, if any, and its messages, at least one."""
    for line, found in stream:
        messages = found.get("conversations") if isinstance(found, dict) else None
        if not isinstance(found, dict) or not isinstance(messages, list):
            must = 'must be {"id": ..., "conversations": [...]}'
            raise KvsimError(f"trace {path}, line {line}: a conversation {must}, got {shown(found)}")
        talk = []
        for message in messages:
            who, text = (
                (message.get("from"), message.get("value")) if isinstance(message, dict) else (None, None)
            )
            if not isinstance(who, str) or not isinstance(text, str):
                must = 'must be {"from": TEXT, "value": TEXT}'
                raise KvsimError(
                    f"trace {path}, line {line}: conversations: a message {must}, got {shown(message)}"
                )
            talk.append(Message(SPEAKERS.get(who, ""), text))
        if not talk:
            left_out["empty conversation"] += 1
        elif not all(message.speaker for message in talk):
            left_out["conversation with a message of an unknown role"] += 1
        else:
            name = found.get("id")
            yield None if name is None else str(name), talk


def _first_turns(
    conversations: Iterable[tuple[str | None, list[Message]]], count: Count, left_out: Counter[str]
) -> dict[str, Any]:
    prompts, outputs = array("d"), array("d")
    for _, talk in conversations:
        system = [message for message in talk[:1] if message.speaker == "system"]
        turn = talk[len(system) :][:2]
        if [message.speaker for message in turn] != ["human", "assistant"]:
            few = len(turn) < 2
            left_out[
                "conversation of fewer than 2 messages" if few else "no question and answer to begin with"
            ] += 1
            continue
        prompt, output = sum(count(message.text) for message in [*system, turn[0]]), count(turn[1].text)
        for what, tokens in (("prompt", prompt), ("output", output)):
            if tokens < FEWEST_TOKENS:
                left_out[f"{what} of fewer than {FEWEST_TOKENS} tokens"] += 1
                break
        else:
            prompts.append(prompt)
            outputs.append(output)
    return {"prompt_tokens": np.array(prompts), "output_tokens": np.array(outputs)}


@dataclass
class _Session:
    number: int
    last: bytes | None = None
    """Digest of the message that the next chunk may repeat."""
    question: int | None = None
    answer: int | None = None


def _all_turns(
    conversations: Iterable[tuple[str | None, list[Message]]], count: Count, left_out: Counter[str]
) -> dict[str, Any]:
    """All turns; those of a conversation are adjacent."""
    sessions: dict[str | int, _Session] = {}
    numbers, questions, answers = array("q"), array("d"), array("d")

    def finish(session: _Session) -> None:
        if session.answer is not None:
            numbers.append(session.number)
            questions.append(session.question or 0)
            answers.append(session.answer)
        elif session.question is not None:
            left_out["question without an answer"] += 1
        session.question = session.answer = None

    for name, talk in conversations:
        base = len(sessions) if name is None else _without_chunk(name)
        session = sessions.setdefault(base, _Session(len(sessions)))
        repeated = talk[0].digest() == session.last
        session.last = talk[-1].digest()
        for message in talk[repeated:]:
            if message.speaker != "assistant":
                if session.answer is not None:
                    finish(session)
                session.question = (session.question or 0) + count(message.text)
            elif session.question is not None:
                session.answer = (session.answer or 0) + count(message.text)
            else:
                left_out["answer without a question"] += 1
    for session in sessions.values():
        finish(session)
    order = np.argsort(np.array(numbers), kind="stable")
    conversation, new_tokens, output_tokens = (
        np.array(column)[order] for column in (numbers, questions, answers)
    )
    prompt_tokens, texts = whole_prompts(conversation, new_tokens, output_tokens)
    begins = np.flatnonzero(np.diff(conversation, prepend=-1))
    turn = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    names = np.array([*map(str, sessions)], dtype=object)
    labels = {"session": names[conversation], "turn": turn}
    return {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "texts": texts, "labels": labels}


def _without_chunk(name: str) -> str:
    """`QWJhYvA` for `QWJhYvA_13`."""
    base, _, start = name.rpartition("_")
    return base if base and start.isdecimal() else name


def _guess(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def _whatever_the_text(count: Count) -> Count:
    """Like `count`, but also for texts with lone surrogates, which tokenizers reject."""

    def counted(text: str) -> int:
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return count(text)

    return counted
