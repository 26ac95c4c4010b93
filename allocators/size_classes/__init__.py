"""Allocators that sort free extents by size: Mooncake's OffsetAllocator, TLSF, segregated fit, slabs."""
