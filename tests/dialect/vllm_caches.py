"""vLLM's operators that write caches, on a CPU: schemas, and references after what its kernels compute."""

from __future__ import annotations

import torch
from torch import Tensor

E4M3, LIMIT = torch.float8_e4m3fn, 448.0
#: Names of caches that hold values as they are.
_PLAIN = ("auto", "bfloat16", "float16")


def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    _write(key_cache, _stored(key, kv_cache_dtype, k_scale), slot_mapping)
    _write(value_cache, _stored(value, kv_cache_dtype, v_scale), slot_mapping)


def concat_and_cache_mla(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, scale: Tensor
) -> None:
    if kv_cache_dtype != "fp8_ds_mla":
        rows = [_stored(x, kv_cache_dtype, scale) for x in (kv_c, k_pe)]
        return _write(kv_cache, torch.cat(rows, -1), slot_mapping)
    tiles = kv_c.float().unflatten(-1, (4, 128))
    scales = tiles.abs().amax(-1, keepdim=True) / torch.tensor(LIMIT)
    scales = scales.clamp(min=torch.finfo(torch.float32).tiny)
    parts = [_codes(tiles / scales).flatten(-2), scales.squeeze(-1), k_pe]
    _write(kv_cache, torch.cat([x.contiguous().view(torch.uint8) for x in parts], -1), slot_mapping)


def indexer_k_quant_and_cache(
    k: Tensor, kv_cache: Tensor, slot_mapping: Tensor, quant_block_size: int, scale_fmt: str
) -> None:
    block, width = kv_cache.shape[1], k.shape[1]
    scale = k.float().abs().amax(-1, keepdim=True).clamp(min=1e-4) / torch.tensor(LIMIT)
    if scale_fmt == "ue8m0":
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    pages = kv_cache.view(kv_cache.shape[0], -1)
    _write(pages[:, : block * width].unflatten(-1, (block, width)), _codes(k.float() / scale), slot_mapping)
    _write(pages[:, block * width :].unflatten(-1, (block, 4)), scale, slot_mapping)


def _stored(x: Tensor, kind: str, scale: Tensor) -> Tensor:
    return x if kind in _PLAIN else _codes(x.float() / scale.reshape(()))


def _codes(x: Tensor) -> Tensor:
    return x.clamp(-LIMIT, LIMIT).to(E4M3)


def _write(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    if cache.dtype == torch.uint8:
        rows = rows.contiguous().view(torch.uint8)
    for row, slot in zip(rows, slots.tolist(), strict=False):
        if slot >= 0:
            cache[slot // cache.shape[1], slot % cache.shape[1]] = row


CACHE_SCHEMAS = {
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, "
    "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()": reshape_and_cache_flash,
    "concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor! kv_cache, Tensor slot_mapping, "
    "str kv_cache_dtype, Tensor scale) -> ()": concat_and_cache_mla,
    "indexer_k_quant_and_cache(Tensor k, Tensor! kv_cache, Tensor slot_mapping, int quant_block_size, "
    "str scale_fmt) -> ()": indexer_k_quant_and_cache,
}
