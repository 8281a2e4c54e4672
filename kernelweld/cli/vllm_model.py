"""What the MODEL of ``vllm-config`` means: its ``config.json``, found without vLLM and without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from kernelweld.cli.zoo import ZOO
from kernelweld.errors import BadTarget, UnknownName

Config = Mapping[str, object]

_ARCHITECTURE = re.compile(r"[A-Z]\w*(ForCausalLM|ForConditionalGeneration|Model|MTP)")
_OF_A_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_OF_OTHER_KINDS = ("FOLDER", "OWNER/NAME", "Qwen3ForCausalLM")


def model_config(model: str) -> Config:
    """The configuration of ``model``.

    Raises:
        UnknownName: no such model; with close names.
        BadTarget: there is one, and its configuration cannot be read.
        MissingDependency: a name ``hf:…`` needs ``transformers``.
    """
    if model.startswith("hf:") and model.removeprefix("hf:") in ZOO:
        return _known(model.removeprefix("hf:"))
    if Path(model).is_dir():
        return _read(model, Path(model) / "config.json")
    if Path(model).is_file():
        return _read(model, Path(model))
    if model.startswith(("/", "./", "../", "~")):
        raise BadTarget(model, "there is no such folder", "Give the folder of a model that vLLM serves.")
    if _ARCHITECTURE.fullmatch(model):
        return {"architectures": [model]}
    if not _OF_A_HUB.fullmatch(model):
        raise UnknownName("model", model, (*(f"hf:{name}" for name in ZOO), *_OF_OTHER_KINDS))
    found = _downloaded(model)
    if found is None:
        advice = "Give the folder of the model, start vLLM with it once, or give its architecture's name."
        raise BadTarget(model, "it is no folder, and not among the models that were downloaded", advice)
    return _read(model, found)


def _read(model: str, path: Path) -> Config:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        advice = "Give the folder of a model that vLLM serves."
        raise BadTarget(model, f"{path} cannot be read: {error.strerror}", advice) from error
    except ValueError as error:
        raise BadTarget(model, f"{path} is no JSON: {error}", "Download it again.") from error
    if not isinstance(found, dict):
        raise BadTarget(model, f"{path} holds no object", "Give the config.json of a model.")
    return found


def _known(name: str) -> Config:
    from kernelweld.cli.hf import zoo_config

    config = zoo_config(name, full=True)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {**config.to_dict(), "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]}


def _downloaded(model: str) -> Path | None:
    """Its ``config.json`` in the cache of downloaded models."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(model, "config.json")
    return Path(found) if isinstance(found, str) else None
