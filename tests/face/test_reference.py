"""The model in 200 lines is that long, does what its page says, and its own memory is kvsim's."""

import ast
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from kvsim import reference
from kvsim.allocators.paged import Paged
from kvsim.reference import Continuous, Pages, Request

SOURCE = Path(reference.__file__)
PAGE = Path(__file__).parents[2] / "docs" / "model-in-200-lines.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def printed_by(call):
    out = io.StringIO()
    with redirect_stdout(out):
        call()
    return out.getvalue()


def test_it_has_at_most_200_lines_of_code():
    text, others = SOURCE.read_text("utf-8"), set()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            others |= set(range(node.lineno, node.end_lineno + 1))
    code = [line for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in others]
    assert len(code) <= 200


def test_the_page_shows_its_loop_and_what_it_prints():
    loop, *_ = blocks("python")
    told, *_ = blocks("text")
    assert loop in SOURCE.read_text("utf-8")
    assert printed_by(reference.main) == told


def test_the_changes_of_the_page_print_what_stands_below_them():
    shell = {}
    for change, told in zip(blocks("python")[1:], blocks("text")[1:], strict=True):
        assert printed_by(lambda code=change: exec(compile(code, PAGE.name, "exec"), shell)) == told


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("budget", [64, 1 << 30])
def test_its_pages_are_allocated_and_counted_as_those_of_kvsim(block_size, budget):
    def price(shape):
        return 10**10 + 10**7 * shape.prefill_tokens + 10**8 * shape.decode_seqs

    def served(memory):
        rows = [(n, n * 10**10, 1 + 37 * n % 90, 1 + 53 * n % 110) for n in range(60)]
        requests = [Request(*row) for row in rows]
        done = Continuous(requests, memory, price, budget=budget).run()
        assert done.preemptions > 0
        return [(each.token_ps, each.preemptions) for each in requests], done.held, done.peak, done.steps

    assert served(Pages(640, block_size)) == served(Paged(640, block_size))
