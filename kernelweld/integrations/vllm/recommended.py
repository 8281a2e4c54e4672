"""The compilation config that is recommended for a model in vLLM, with a reason for each field.

What vLLM decides well by itself is left to it; such fields have a reason too, and no value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelweld.integrations.vllm import versions
from kernelweld.integrations.vllm.uncompiled import Device, uncompiled

Config = Mapping[str, object]


@dataclass(frozen=True)
class Serving:
    """How a model is to be served.

    Args:
        version: vLLM's; None for the newest that is known.
        device: What it runs on.
        tensor_parallel: GPUs that share each layer.
        untested: Whether the user wants a release that kernelweld was not tested with.
    """

    version: str | None = None
    device: Device = "cuda"
    tensor_parallel: int = 1
    untested: bool = False


@dataclass(frozen=True)
class Field:
    """A field of vLLM's ``CompilationConfig``, dotted, and why it has its value; None: vLLM's own."""

    name: str
    reason: str
    value: str | bool | None = None


@dataclass(frozen=True)
class Recommendation:
    """What to set.

    ``environment`` holds variables without which nothing would be welded; ``inactive`` says why nothing will
    be, whatever is set.
    """

    fields: tuple[Field, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    inactive: str | None = None

    @property
    def config(self) -> dict[str, object]:
        """The fields that have a value, as vLLM reads them; nothing for a model that is not welded."""
        nested: dict[str, object] = {}
        for one in self.fields if self.inactive is None else ():
            if one.value is not None:
                *outer, last = one.name.split(".")
                inner = nested
                for name in outer:
                    inner = inner.setdefault(name, {})  # type: ignore[assignment]
                inner[last] = one.value
        return nested


def recommended(model: Config, serving: Serving) -> Recommendation:
    """For the model whose ``config.json`` says ``model``."""
    fields = tuple(_fields(model, serving))
    version = serving.version
    refused = None if version is None else versions.refusal(version, serving.untested)
    if refused is not None:
        return Recommendation(fields, inactive=refused)
    names = architectures(model)
    found = uncompiled(names, None if version is None else versions.release(version), serving.device)
    if found is not None and not found.environment:
        return Recommendation(fields, inactive=found.reason)
    environment = {} if found is None else found.environment
    return Recommendation(fields, environment, tuple(_warnings(names, serving)))


def architectures(model: Config) -> Sequence[str]:
    """The classes that may run the model."""
    found = model.get("architectures")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _warnings(names: Sequence[str], serving: Serving) -> Iterator[str]:
    if not names:
        yield (
            "config.json names no architectures, so whether vLLM compiles the model is not known; the log "
            "of the engine tells"
        )
    if serving.version is None:
        yield f"vLLM is not installed here: this is for releases {versions.tested()}"
    if serving.device == "cpu":
        yield "on a CPU no kernels run: welds are what Inductor makes of their words"


def _fields(model: Config, serving: Serving) -> Iterator[Field]:
    yield Field(
        "inductor_passes.post_grad_custom_post_pass",
        "kernelweld gets every graph that vLLM compiles, after vLLM's own passes",
        "kernelweld.vllm_pass",
    )
    yield from _norm_and_gate(model, serving)
    yield from _LEFT_PASSES
    yield _all_reduce(serving)
    yield from _LEFT


def _norm_and_gate(model: Config, serving: Serving) -> Iterator[Field]:
    """vLLM's two fusions with codes, which it turns on where codes are its own operator."""
    quantization = _quantization(model)
    if serving.device == "cuda" and in_blocks(quantization):
        apart = (
            "apart they are one weld in any layout of scales; vLLM's operator for both becomes a weld too, "
            "but not in every layout, and is slower where it stays (docs/performance.md:"
        )
        yield Field(_NORM, f"norm and codes: {apart} add + norm + group fp8)", value=False)
        yield Field(_GATE, f"gate and codes: {apart} silu gate + group fp8)", value=False)
        return
    yield Field(_NORM, "off unless norms or codes are custom operators, which by default they are not")
    if "nvfp4" in json.dumps(quantization).lower():
        reason = "on for NVFP4, and best so: scales in tiles are not welded where the number of tokens varies"
        yield Field(_GATE, reason)
    else:
        yield Field(_GATE, "off unless gates or codes are custom operators, which by default they are not")


def _all_reduce(serving: Serving) -> Field:
    name = "pass_config.fuse_allreduce_rms"
    if serving.tensor_parallel == 1:
        return Field(name, "there is nothing to reduce on one GPU")
    return Field(
        name,
        "leave it on: kernelweld welds no collectives, and a norm inside the all-reduce before it saves more "
        "than one in the weld behind it",
    )


def _quantization(model: Config) -> Mapping[str, object]:
    """How the weights are stored; models of several parts keep it with the language model."""
    text = model.get("text_config")
    for part in (model, text if isinstance(text, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            found = part.get(key)
            if isinstance(found, Mapping):
                return found
    return {}


def in_blocks(quantization: Mapping[str, object]) -> bool:
    """Whether weights have a scale a block, for which vLLM makes codes by its own operator."""
    if quantization.get("weight_block_size"):
        return True
    groups = quantization.get("config_groups")
    schemes = groups.values() if isinstance(groups, Mapping) else ()
    weights = (scheme.get("weights") for scheme in schemes if isinstance(scheme, Mapping))
    return any(isinstance(one, Mapping) and one.get("strategy") == "block" for one in weights)


_NORM = "pass_config.fuse_norm_quant"
_GATE = "pass_config.fuse_act_quant"

_LEFT_PASSES = (
    Field(
        "pass_config.enable_qk_norm_rope_fusion",
        "off by default; on, it would hide norms and rotation of queries and keys in one operator",
    ),
    Field(
        "pass_config.eliminate_noops", "on by default; views that do nothing are gone before kernelweld looks"
    ),
)

_LEFT = (
    Field("mode", "kernelweld needs VLLM_COMPILE (3), which is the default from -O1 on"),
    Field(
        "custom_ops",
        "none by default: of plain operations kernelweld welds what is worth it and Inductor fuses the rest, "
        "while a custom operator is welded whole or stays a launch. For weights in blocks vLLM adds "
        "+quant_fp8 itself; leave that, as only its operator makes the layouts of scales that DeepGEMM reads",
    ),
    Field(
        "splitting_ops",
        "whole graphs (an empty list) would show rotation and cache write together, but the write finds its "
        "cache by the name of a layer and cannot be welded; pieces that are equal are compiled once",
    ),
    Field("use_inductor_graph_partition", "off by default; as splitting_ops"),
    Field("cudagraph_mode", "CUDA graphs record welds as any other kernel"),
    Field("compile_sizes", "a weld is planned for any number of tokens of its range"),
)
