"""Measured launches on disk: one file a GPU beside the generated kernels."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
import triton

from kernelweld.codegen.cache import cache_dir, write_text
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.tuning import Entry, Tuning
from kernelweld.errors import KernelweldWarning

FORMAT = 1
_WARPS = (1, 2, 4, 8, 16, 32)


class _Unusable(ValueError):
    """Why a file is not used, in words."""


def gpu_name() -> str:
    """The current GPU, by the name that its table carries."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def path_of(gpu: str) -> Path:
    """The file of ``gpu``."""
    return cache_dir() / "tuning" / f"{re.sub(r'[^A-Za-z0-9]+', '-', gpu).strip('-')}.json"


def read_tuning(gpu: str) -> Tuning:
    """What was measured on ``gpu``, nothing if there is no file.

    A file that is damaged, of another GPU, or of other versions is not used, with a warning.
    """
    path = path_of(gpu)
    try:
        return _parsed(path.read_text(encoding="utf-8"), gpu)
    except FileNotFoundError:
        return Tuning(gpu)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error) if isinstance(error, _Unusable) else "it is damaged"
        cause = f"the measured launches in {path} are not used: {reason}"
        warnings.warn(KernelweldWarning(cause, "Write them anew with kernelweld bench --tune."), stacklevel=2)
        return Tuning(gpu)


def write_tuning(tuning: Tuning) -> Path:
    """Writes the table of ``tuning.gpu`` in place of what is there; raises OSError."""
    path = path_of(tuning.gpu)
    record = {
        "format": FORMAT,
        "gpu": tuning.gpu,
        "triton": triton.__version__,
        "entries": [asdict(entry) for entry in tuning.entries],
    }
    write_text(path, json.dumps(record, indent=1) + "\n")
    return path


def _parsed(text: str, gpu: str) -> Tuning:
    record = json.loads(text)
    if not isinstance(record, dict):
        raise TypeError(type(record))
    for name, wanted in (("format", FORMAT), ("gpu", gpu), ("triton", triton.__version__)):
        if record.get(name) != wanted:
            raise _Unusable(f"its {name} is {record.get(name)!r}, not {wanted!r}")
    return Tuning(gpu).including(_entry(**entry) for entry in record["entries"])


def _entry(kernel: object, lowest: object, launch: dict[str, Any], us: float, default_us: float) -> Entry:
    warps, stages, rows = launch["num_warps"], launch["num_stages"], launch["rows"]
    packed = launch["packed"]
    if (
        warps not in _WARPS
        or not isinstance(packed, bool)
        or not _positive(stages)
        or not all(_positive(r) and r & (r - 1) == 0 for r in rows)
    ):
        raise ValueError(launch)
    if not isinstance(kernel, str) or not _positive(lowest):
        raise TypeError(kernel, lowest)
    found = Launch(warps, stages, tuple(rows), packed)
    return Entry(kernel, cast(int, lowest), found, float(us), float(default_us))


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
