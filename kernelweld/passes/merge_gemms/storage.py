"""Several parameters in one memory, each with a storage object of its own size.

`UntypedStorage.__getitem__` with a slice makes a new storage over part of the same memory. So to all that
walks storages (`torch.save`, safetensors, pickle) each parameter is an ordinary tensor, while an in-place
update of it lands in the packed tensor that compiled code reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import nn

_ALIGNMENT = 16  # bytes: Inductor clones an input at any other address, and cuBLAS has slower kernels for it


def row_offsets(parts: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """First row of each part, then the number of rows; all multiples of 16 bytes' worth of elements.

    So the rows of the weight, the items of the bias and the columns of the GEMM's result all start aligned.
    """
    step = max(1, _ALIGNMENT // parts[0].element_size())
    return tuple(accumulate((-(-part.shape[0] // step) * step for part in parts), initial=0))


def pack(parts: Sequence[torch.Tensor]) -> nn.Parameter:
    """Move the data of the parameters `parts`, each `[rows, …]`, into one `[all rows, …]`; zeros in between.

    The parameters stay the same objects with the same values and flags. The result is a parameter only so
    that Dynamo marks its address as static: CUDA graphs would copy any other input on each replay.
    """
    *starts, rows = row_offsets(parts)
    with torch.inference_mode(False), torch.no_grad():
        packed = parts[0].data.new_zeros(rows, *parts[0].shape[1:])
        for part, start in zip(parts, starts, strict=True):
            view = _slice(packed, start, part.shape[0])
            view.copy_(part)
            part.data = view
        return nn.Parameter(packed, requires_grad=False)


def is_packed_at(part: torch.Tensor, packed: torch.Tensor, row: int, rows: int) -> bool:
    """Whether `part` is the `rows` of `packed` from `row` on; on the meta device, whether it could be."""
    shape = (rows, *packed.shape[1:])
    if (part.dtype, part.device, part.shape) != (packed.dtype, packed.device, shape):
        return False
    if packed.device.type == "meta":
        return True
    if part.stride() != packed.stride():
        return False
    return part.data_ptr() == packed.data_ptr() + row * packed.stride(0) * packed.element_size()


def unpack(part: torch.Tensor) -> None:
    """Give the parameter a memory of its own again."""
    with torch.inference_mode(False), torch.no_grad():
        part.data = part.data.clone()


def why_not_packable(part: torch.Tensor | None) -> str | None:
    """Why the data of a parameter may not be moved to another memory; None when it may."""
    if type(part) is not nn.Parameter:
        return f"is a {type(part).__name__}, not a plain parameter"
    if not part.dtype.is_floating_point or part.element_size() < 2:
        return f"is quantized ({_name(part.dtype)})"
    if part.layout is not torch.strided or not part.is_contiguous():
        return "is not contiguous"
    if part.numel() == 0:
        return "is empty"
    if part.is_inference():
        return "was created in inference mode"
    storage = part.untyped_storage()
    if storage.nbytes() != part.nbytes:
        return "is a view of a larger storage"
    if part.device.type == "cpu" and part.is_shared():
        return "lies in shared memory"
    if _holders(part) > _holders(torch.empty(0, device="cpu")):
        return "shares its storage with another tensor"
    return None


def _slice(packed: torch.Tensor, row: int, rows: int) -> torch.Tensor:
    if packed.device.type == "meta":  # no memory, and no slices of its storage
        return packed.narrow(0, row, rows)
    step = packed.stride(0) * packed.element_size()
    storage = packed.untyped_storage()[row * step : (row + rows) * step]
    return packed.new_empty(0).set_(storage, 0, (rows, *packed.shape[1:]), packed.stride())


def _holders(tensor: torch.Tensor) -> int:
    """Tensors on this storage, plus a constant. If the data moves, the others keep the old values."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
