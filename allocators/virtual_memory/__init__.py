"""Allocators that map physical pages behind contiguous virtual addresses: vAttention, kvcached."""
