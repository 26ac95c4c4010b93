"""The option of every scheduler that a decode pool may have: the link over which it gets prompts."""

from kvsim.allocators.option import option


def transfer_link() -> str:
    """The field of `kv_transfer_link`; both manners (sim/serving/hand_over.py) read it alike."""
    link: str = option(
        "Link of a decode pool to the prefill servers: a name, or GB/s.",
        default="400gb",
        value="NAME|GB/S",
        doc="the link over which each GPU of a [decode pool](fleet.md#prefill-and-decode-apart) gets "
        "prompts: as `--kv-offloading-link`",
    )
    return link
