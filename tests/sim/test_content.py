"""Facts about shared content: what texts share, token by token."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.sim.content import TextBuilder, ascending, shared_content


def built(*requests):
    """The texts of requests, each (prompt_tokens, answer_tokens, what else is known), and their prompts."""
    builder = TextBuilder()
    for prompt, answer, known in requests:
        builder.add(prompt, answer, **known)
    return builder.texts(), np.array([prompt for prompt, _, _ in requests])


def shared(*requests, several=None):
    texts, prompts = built(*requests)
    return shared_content(texts, prompts, several)


def segments(*parts, answer=10, **known):
    return sum(tokens for _, tokens in parts), answer, {"segments": parts, **known}


def token_ids(*ids, answer=10, **known):
    return len(ids), answer, {"token_ids": ids, **known}


def turn(session, prompt, answer, **known):
    return prompt, answer, {"session": session, **known}


# What a text is


def test_ids_that_go_up_by_one_are_one_run():
    assert ascending([900, 901, 902, 1, 2]) == [(900, 3), (1, 2)]
    assert ascending([5, 5, 4]) == [(5, 1), (5, 1), (4, 1)]


def test_a_request_of_which_nothing_is_known_shares_nothing():
    assert shared((5, 5, {}), (5, 5, {})) is None
    assert shared_content(None, np.array([5, 5])) is None


def test_a_system_prompt_is_shared_up_to_its_end():
    system = ((0, 0, 512),)
    assert shared(segments(("system", 512), ("a", 80)), segments(("system", 512), ("b", 80))) == [system] * 2


def test_a_segment_is_shared_as_far_as_the_shorter_goes():
    assert shared(
        segments(("s", 9), ("a", 1)), segments(("s", 5), ("b", 7)), segments(("s", 7), ("c", 1))
    ) == [
        ((0, 0, 7),),
        ((0, 0, 5),),
        ((0, 0, 7),),
    ]


def test_the_same_segment_in_another_place_is_not_shared():
    assert shared(segments(("a", 3), ("s", 9)), segments(("b", 3), ("s", 9))) is None


def test_equal_prompts_are_shared_whole_but_not_the_answers():
    assert shared(segments(("a", 3)), segments(("a", 3))) == [((0, 0, 3),)] * 2


def test_token_ids_are_shared_up_to_the_first_that_differs():
    assert shared(token_ids(900, 901, 902, 1, 2), token_ids(900, 901, 7), token_ids(8)) == [
        ((0, 900, 2),),
        ((0, 900, 2),),
        (),
    ]


def test_a_later_turn_hits_the_prompt_and_the_answer_before_it():
    assert shared(turn("s", 100, 20), turn("s", 150, 30), turn("s", 200, 5)) == [
        ((0, 0, 120),),
        ((0, 0, 180),),
        ((0, 0, 180),),
    ]


def test_an_answer_continues_the_session_whose_segment_ends_the_prompt():
    first = segments(("system", 50), ("chat", 30), answer=20, session="chat")
    second = segments(("system", 50), ("chat", 70), answer=5, session="chat")
    assert shared(first, second) == [((0, 0, 50), (1, 0, 50))] * 2


@pytest.mark.parametrize("named", [{}, {"turn": 0}])
def test_an_answer_after_other_segments_can_be_named_by_session_and_turn(named):
    first = segments(("question", 30), answer=20, session="chat", **named)
    second = segments(("question", 30), ("chat/0", 20), ("more", 9), session="chat")
    assert shared(first, second) == [((0, 0, 30), (1, 0, 20))] * 2


def test_a_missing_turn_is_the_number_of_earlier_requests_of_the_session():
    question = segments(("a", 3), answer=4, session="chat")
    third = segments(("a", 3), ("chat/1", 4))
    assert shared(question, question, third) == [((0, 0, 3),), ((0, 0, 3), (2, 0, 4)), ((0, 0, 3), (2, 0, 4))]


def test_several_answers_share_exactly_their_prompt():
    several = np.array([True, False])
    assert shared((7, 5, {}), (7, 5, {}), several=several) == [((0, 0, 7),), ()]
    assert shared(segments(("a", 7)), segments(("b", 7)), several=several) == [((0, 0, 7),), ()]
    assert shared(turn("s", 7, 5), turn("t", 7, 5), several=several) == [((0, 0, 7),), ()]
    assert shared(turn("s", 7, 5), turn("s", 20, 5), several=several) == [((0, 0, 12),)] * 2


def test_a_prompt_of_its_own_has_a_stream_of_its_own():
    known = segments(("a", 7)), segments(("a", 7))
    contents = shared(*known, (4, 5, {}), (4, 5, {}), several=np.ones(4, dtype=bool))
    assert contents == [((0, 0, 7),), ((0, 0, 7),), ((3, 0, 4),), ((4, 0, 4),)]


def test_equal_contents_are_one_object():
    contents = shared(*(segments(("s", 5), (f"u{i}", 3)) for i in range(100)))
    assert len(set(map(id, contents))) == 1


# Against brute force

RUNS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), min_size=1, max_size=4)
KNOWN = st.one_of(
    st.fixed_dictionaries({"segments": RUNS}),
    st.fixed_dictionaries({"token_ids": st.lists(st.integers(0, 3), min_size=1, max_size=5)}),
    st.just({}),
)
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.integers(1, 4),
        KNOWN,
        st.sampled_from([{}, {"session": "a"}, {"session": "x"}, {"session": "x", "turn": 0}]),
        st.booleans(),
    ),
    min_size=1,
    max_size=7,
)


def tokens_of(request, row, earlier):
    """A request's tokens, one by one: its prompt, and its first answer."""
    prompt, answer, known, asked, _ = request
    session = asked.get("session")
    own, others = ("own", row), sum(each[3].get("session") == session for each in earlier)
    if "segments" in known:
        text = [(name, at) for name, tokens in known["segments"] for at in range(tokens)]
    elif "token_ids" in known:
        text = [(0, token) for token in known["token_ids"]]
    else:
        stream = session or own
        return [(stream, at) for at in range(prompt)], [(stream, prompt + at) for at in range(answer)]
    stream, first = (own, 0) if session is None else (f"{session}/{asked.get('turn', others)}", 0)
    if session and "segments" in known and known["segments"][-1][0] == session:
        stream, first = known["segments"][-1]
    return text, [(stream, first + at) for at in range(answer)]


def in_common(one, other):
    """The length of the common prefix of two texts."""
    differ = [at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]]
    return differ[0] if differ else min(len(one), len(other))


@pytest.mark.slow
@given(REQUESTS)
@settings(max_examples=500, deadline=None)
def test_contents_are_the_longest_prefixes_of_brute_force(requests):
    several = np.array([request[4] for request in requests])
    builder, prompts, whole = TextBuilder(), [], []
    for row, request in enumerate(requests):
        prompt, answer = tokens_of(request, row, requests[:row])
        prompts.append(prompt)
        whole.append(prompt + answer)
        builder.add(len(prompt), request[1], **request[2], **request[3])
    contents = shared_content(builder.texts(), np.array(list(map(len, prompts))), several)
    expected = [
        max(
            [len(prompts[row]) * several[row]]
            + [in_common(text, other) for at, other in enumerate(whole) if at != row]
        )
        for row, text in enumerate(whole)
    ]
    assert (contents is None) == (not any(expected))
    numbers = {}
    for content, text, length in zip(contents or [()] * len(whole), whole, expected, strict=True):
        found = [(stream, first + at) for stream, first, run in content for at in range(run)]
        assert len(found) == length
        for (stream, at), (name, place) in zip(found, text, strict=False):
            assert at == place
            assert numbers.setdefault(stream, name) == name
        for (stream, first, length_), (following, at, _) in pairwise(content):
            assert (stream, first + length_) != (following, at)
    assert len(set(numbers.values())) == len(numbers)
