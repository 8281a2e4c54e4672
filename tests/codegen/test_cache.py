"""Kernel files: named by content, written once, imported once, fit for every launch path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from triton.runtime.autotuner import Autotuner

from kernelweld.codegen.cache import cache_dir, digest, load, load_function, write
from kernelweld.codegen.launch import Launch
from kernelweld.errors import CodegenFailed


def test_the_file_holds_the_source_under_its_digest(catalogue: Any, kernel_cache: Path) -> None:
    kernel = catalogue("swiglu")
    path = write(kernel)
    assert path == kernel_cache / "kernels" / f"{kernel.name}_{digest(kernel)}.py"
    assert path.read_text() == kernel.source
    assert not list(path.parent.glob("*.tmp"))


def test_a_damaged_file_is_written_again(catalogue: Any) -> None:
    path = write(catalogue("swiglu"))
    path.write_text("damaged")
    assert write(catalogue("swiglu")).read_text() == catalogue("swiglu").source


def test_equal_content_is_one_object(catalogue: Any) -> None:
    assert load(catalogue("swiglu")) is load(catalogue("swiglu"))
    assert load_function(catalogue("swiglu")) is load_function(catalogue("swiglu"))


def test_warps_are_part_of_the_content(catalogue: Any) -> None:
    kernel = catalogue("swiglu")
    wider = replace(kernel, launch=Launch(16, 1, kernel.launch.rows))
    assert digest(wider) != digest(kernel)
    assert load(wider) is not load(kernel)


def test_a_loaded_kernel_has_exactly_one_configuration(catalogue: Any) -> None:
    kernel = catalogue("add_rms_norm")
    tuned = load(kernel)
    assert isinstance(tuned, Autotuner)
    (config,) = tuned.configs
    assert (config.num_warps, config.num_stages) == (kernel.launch.num_warps, kernel.launch.num_stages)
    assert config.kwargs == {}


def test_tracebacks_name_the_kernel_file(catalogue: Any) -> None:
    kernel = catalogue("swiglu")
    assert load_function(kernel).fn.__code__.co_filename == str(write(kernel))


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("KERNELWELD_CACHE_DIR")
    assert cache_dir() == Path.home() / ".cache" / "kernelweld"


def test_a_folder_that_cannot_be_written_is_named(
    catalogue: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kernels").write_text("a file where the folder should be")
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path))
    with pytest.raises(CodegenFailed, match="its file cannot be written to"):
        write(catalogue("swiglu"))
