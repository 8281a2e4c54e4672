"""Tiny random checkpoints of transformers' DeepSeek-V3.2."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from serving import TINY


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Operations are too small to be shared by threads, which wait for each other on busy machines."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that saves a random model, whose norms and biases are not trivial, once for each set of
    options.
    """
    folders: dict[str, Path] = {}

    def save(**options: Any) -> Path:
        key = json.dumps(options, sort_keys=True)
        if key not in folders:
            transformers = pytest.importorskip("transformers")
            torch.manual_seed(0)
            config = transformers.DeepseekV32Config(**{**TINY, **options})
            model = transformers.DeepseekV32ForCausalLM(config)
            for name, tensor in model.state_dict().items():
                if tensor.dim() == 1:
                    tensor.copy_(torch.randn_like(tensor) * 0.1 + (0.0 if "bias" in name else 1.0))
            folders[key] = tmp_path_factory.mktemp("checkpoint")
            model.save_pretrained(folders[key])
        return folders[key]

    return save


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Three prompts, the first of two pages."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 128, (n,), generator=generator).tolist() for n in (70, 5, 33)]
