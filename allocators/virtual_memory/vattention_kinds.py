"""vAttention's other kinds: larger pages, another choice of a row, rows that give their pages up.

vattention         pages of 64 KiB     the first row with enough pages, or the first     pages stay
vattention-128k    128 KiB
vattention-256k    256 KiB
vattention-2m      2 MiB
vattention-best                        the row with just enough
vattention-eager                                                                         one goes in a step
"""

from kvsim.allocators.virtual_memory.vattention import KIB, VAttention


class VAttention128K(VAttention):
    """Pages of 128 KiB."""

    idea = "as vattention, with pages of 128 KiB"
    wastes = "< 2 * layers pages: 8 MiB (Llama-3-8B); nothing between"

    page_bytes = 128 * KIB


class VAttention256K(VAttention):
    """Pages of 256 KiB."""

    idea = "as vattention, with pages of 256 KiB"
    wastes = "< 2 * layers pages: 16 MiB (Llama-3-8B); nothing between"

    page_bytes = 256 * KIB


class VAttention2M(VAttention):
    """Pages of 2 MiB, the only ones that CUDA's own driver has."""

    idea = "as vattention, with pages of 2 MiB: no driver of its own"
    wastes = "< 2 * layers pages: 128 MiB (Llama-3-8B); nothing between"

    page_bytes = 2048 * KIB


class VAttentionBestFit(VAttention):
    """A new sequence gets the row that has just enough pages."""

    idea = "as vattention; a new sequence gets the row that fits best"
    used_by = "nobody: what vAttention's comment says"

    choice = "best"


class VAttentionEager(VAttention):
    """Rows without a sequence give their pages up, one kvblock in a step."""

    idea = "as vattention; rows of nobody are unmapped bit by bit"

    deferred = False
