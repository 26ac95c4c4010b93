"""What an allocator's class says of itself: where it stands in the zoo, and what it can do.

Each is a class variable. The engine, the schedulers and the reports ask for these and never for a name, so
that a class of your own is treated as the built-in ones are. What differs from object to object stands in
`Account` (allocators/account.py).
"""

from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.option import NoOptions


@mypyc_attr(allow_interpreted_subclasses=True)
class Facts:
    """Facts about a class of allocators, by default those of a plain one."""

    family: ClassVar[str] = ""
    """One of FAMILIES (allocators/__init__.py): where `sim allocators` lists it"""
    idea: ClassVar[str] = ""
    """The rule in one line, at most 70 characters"""
    wastes: ClassVar[str] = ""
    """What it wastes, at most 60 characters: a formula of one sequence, then what is lost between them"""
    used_by: ClassVar[str] = ""
    """Which engines use it, or did; at most 40 characters"""
    source: ClassVar[str] = ""
    """Where the rule is from: a paper (name, venue and year), or a file of an engine"""
    note: ClassVar[str] = ""
    """What a reader of every result must know beside the numbers: a sentence"""

    declares: ClassVar[type] = NoOptions
    """Its own options: a frozen dataclass of `option` fields (allocators/option.py)"""
    scheduler: ClassVar[str] = ""
    """The scheduler that it goes with where none is asked for; "": vllm-v1 above pages, else orca"""
    slow: ClassVar[bool] = False
    """Whether runs take so long that comparisons of all leave it out, unless it is named too."""
    reserves: ClassVar[bool] = False
    """Whether `admit` sets aside all of `bound`, so that a reservation policy has a meaning."""
    frees_when_refused: ClassVar[bool] = False
    """Whether a refused growth may free what no later token of the sequence sees, as engines do."""
    knows_prompts: ClassVar[bool] = False
    """Whether it is told where prompts end (`introduce`) and when steps begin (`new_step`)."""
    keeps_groups: ClassVar[bool] = False
    """Whether the option `hybrid` has a meaning."""
    own_page_sizes: ClassVar[bool] = False
    """Whether pages of unlike layers may differ in bytes: a slot is then a grain that divides them all."""
    idles: ClassVar[bool] = False
    """Whether free slots may be `idle`: results then have one kind more."""
    works_after_steps: ClassVar[bool] = False
    """Whether `after_step` does anything: the engine then plans one step at a time."""
    works_in_spans: ClassVar[bool] = False
    """Whether many steps can be taken at once all the same: `grows_by`, `grow_mapped`, `pass_steps`."""
    moves_on_release: ClassVar[bool] = False
    """Whether `release` may copy slots, as a pool does that leaves no holes."""
    moves_in_part: ClassVar[bool] = False
    """Whether only so much is moved for a refused sequence: a token in a hole may save the move it lacks."""
    reads_holes: ClassVar[bool] = False
    """Whether decoding reads `read_slots`, whatever the contexts are: each step is then priced by itself."""
    windows: ClassVar[bool] = False
    """Whether a token may take several slots, or none any more (`slots_per_token`, `expired_slots`)."""
    pages: ClassVar[bool] = False
    """Whether memory is in pieces found through a table, as the kernels of paging engines read it."""
    has_blocks: ClassVar[bool] = False
    """Whether the option `block_size` has a meaning, and kernels read blocks of that size."""
    forks: ClassVar[bool] = False
    """Whether `fork`, `swap_out` and `swap_in` work."""
    copies_on_write: ClassVar[bool] = False
    """Whether `fork` copies nothing, and who writes behind a shared last token then copies the tokens of its
    block, but for the last who shares it."""
    pools_windows: ClassVar[bool] = False
    """Whether windowed layers have a pool of their own, so that no scheduler of vLLM's has a say in it"""
    caches_windows: ClassVar[bool] = False
    """Whether prefixes are kept although windowed layers free what they leave behind (`groups`)"""
    frees_behind_windows: ClassVar[bool] = False
    """Whether the option `groups` has a meaning."""
    keeps_prefixes: ClassVar[bool] = False
    """Whether the option `cache` has a meaning, or prefixes are kept anyway."""
