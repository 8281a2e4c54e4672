"""Requests served from paged caches, and the dimensions of a tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from kernelweld.models.caches import PAGE, Cache, Chunk, allocate, batch_of
from kernelweld.models.checkpoint import load
from kernelweld.models.deepseek_v32 import DeepseekV32
from kernelweld.models.parallel import Parallel

#: The layouts of caches fix the widths of latents and keys. With 32 index heads no score is exactly zero,
#: which would leave the choice between equals to each side.
TINY = {
    "vocab_size": 128,
    "hidden_size": 192,
    "intermediate_size": 160,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "q_lora_rank": 80,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "index_topk": 8,
    "index_n_heads": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
    "beta_fast": 32,
    "beta_slow": 1,
}
PAGES = 12


class Server:
    """Requests that a model serves from paged caches, with the pages in disorder."""

    def __init__(self, model: DeepseekV32, requests: int, **formats: Any) -> None:
        self.model = model
        self.caches: list[Cache] = allocate(model.config, PAGES, **formats)
        order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(1)).tolist()
        self.pages = [order[i::requests] for i in range(requests)]
        self.seen = [0] * requests

    def step(self, tokens: Sequence[Sequence[int]], padding: int = 0) -> list[torch.Tensor]:
        """Logits ``[tokens, vocabulary]`` of each request's next ``tokens``."""
        counts = [len(t) for t in tokens]
        chunks = [
            Chunk(start, count, pages[: -(-(start + count) // PAGE)])
            for start, count, pages in zip(self.seen, counts, self.pages, strict=True)
        ]
        batch = batch_of(chunks, PAGES, padding=padding)
        ids = torch.tensor([*(t for some in tokens for t in some), *[0] * padding])
        with torch.no_grad():
            logits = self.model(ids, batch, self.caches)
        self.seen = [start + count for start, count in zip(self.seen, counts, strict=True)]
        return list(logits[: sum(counts)].split(counts))


def run_rank(rank: int, size: int, store: str, checkpoint: str, tokens: list[int], out: str) -> None:
    """One process of ``size``: rank 0 saves the logits of ``tokens`` to ``out``."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    parallel = Parallel(rank, size, distributed.group.WORLD)
    model = load(checkpoint, dtype=torch.float32, parallel=parallel)
    (logits,) = Server(model, 1, dtype=torch.float32).step([tokens])
    if rank == 0:
        torch.save(logits, out)
    distributed.destroy_process_group()
