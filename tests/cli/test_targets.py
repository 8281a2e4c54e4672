"""Every kind of TARGET resolves to something callable, or to an error that says what to do."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from kernelweld.cli import hf
from kernelweld.cli.captured import refusing
from kernelweld.cli.hf import Phase
from kernelweld.cli.targets import Target, names, resolve
from kernelweld.cli.zoo import ZOO
from kernelweld.errors import BadTarget, MissingDependency, UnknownName
from kernelweld.integrations.aot import capture

pytest.importorskip("transformers")
hf_test = pytest.mark.hf
#: Those of transformers; models as served have tests of their own.
HF = tuple(name for name in names() if name.startswith("hf:"))


def call(target: Target) -> object:
    args, kwargs = target.fresh_inputs()
    with torch.no_grad():
        return target.fn(*args, **kwargs)


def logits(target: Target) -> Tensor:
    result = call(target).logits  # type: ignore[attr-defined]
    assert isinstance(result, Tensor)
    return result


def module_names(target: Target) -> set[str]:
    assert isinstance(target.fn, nn.Module)
    return {type(module).__name__ for module in target.fn.modules()}


@hf_test
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", HF)
def test_one_graph_without_breaks_that_computes_the_same(name: str, phase: Phase) -> None:
    """Up to one bfloat16 rounding: Inductor decomposes softmax and silu otherwise than eager's kernels."""
    target = resolve(name, phase=phase, batch=2)
    expected = logits(target)
    found = capture(target.fn, *target.fresh_inputs())
    assert found.breaks == ()
    assert len(found.graphs) == 1
    results = found.graphs[0](*found.inputs[0])
    same_shape = [r for r in results if isinstance(r, Tensor) and r.shape == expected.shape]
    assert any(torch.allclose(result, expected, rtol=1.6e-2, atol=1e-2) for result in same_shape)


@hf_test
@pytest.mark.parametrize("name", HF)
def test_random_model_is_seeded_finite_and_uses_every_norm_weight(name: str) -> None:
    target, again = resolve(name), resolve(name)
    result = logits(target)
    assert result.dtype == torch.bfloat16
    assert result.isfinite().all()
    assert result.std() > 0.01
    assert torch.equal(result, logits(again))
    assert isinstance(target.fn, nn.Module)
    norms = [m for m in target.fn.modules() if "norm" in type(m).__name__.lower()]
    weights = [m.weight for m in norms if isinstance(getattr(m, "weight", None), Tensor)]
    assert weights
    assert all(weight.float().std() > 0.01 for weight in weights), "a constant weight hides one not applied"
    assert all(b.dtype == torch.float32 for n, b in target.fn.named_buffers() if n.endswith("inv_freq"))


@hf_test
def test_building_a_model_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    resolve("hf:llama", layers=1)
    assert torch.equal(before, torch.random.get_rng_state())


@hf_test
@pytest.mark.parametrize("name", ["hf:deepseek_v32", "hf:qwen3_5", "hf:gemma2"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_decode_continues_the_prefill(name: str, cache: hf.CacheKind) -> None:
    """The decode step's logits are those of the same token at the end of one long prefill."""
    decode = resolve(name, phase="decode", batch=2, cache=cache, dtype=torch.float32)
    prefill = resolve(name, phase="prefill", batch=2, dtype=torch.float32)
    prompt, token = prefill.kwargs["input_ids"], decode.kwargs["input_ids"]
    assert isinstance(prompt, Tensor)
    assert isinstance(token, Tensor)
    assert prompt.shape == (2, 7)
    assert token.shape == (2, 1)
    whole = Target(name, prefill.fn, (), {**prefill.kwargs, "input_ids": torch.cat([prompt, token], 1)})
    torch.testing.assert_close(logits(decode)[:, -1], logits(whole)[:, -1], rtol=1e-4, atol=1e-5)


@hf_test
def test_static_prefill_starts_from_an_allocated_empty_cache() -> None:
    target = resolve("hf:llama", cache="static")
    cache = target.kwargs["cache"]
    layer = cache.layers[0]  # type: ignore[attr-defined]
    assert layer.is_initialized
    assert layer.keys.count_nonzero() == 0
    assert torch.equal(logits(target), logits(resolve("hf:llama")))


@hf_test
def test_each_call_of_fresh_inputs_starts_anew() -> None:
    target = resolve("hf:llama", phase="decode")
    assert torch.equal(logits(target), logits(target))
    assert target.kwargs["cache"].get_seq_length() == 7  # type: ignore[attr-defined]


@hf_test
def test_tiny_models_keep_the_real_spelling() -> None:
    deepseek = resolve("hf:deepseek_v32")
    assert {"DeepseekV32MLP", "DeepseekV32MoE", "DeepseekV32Indexer"} <= module_names(deepseek)
    for name in ("qwen3_5_moe", "qwen3_next", "qwen3_5"):
        kinds = hf.zoo_config(name).layer_types
        assert kinds == ["linear_attention"] * 3 + ["full_attention"]
    for name in ZOO:
        tiny, real = hf.zoo_config(name), hf.zoo_config(name, full=True)
        assert tiny.rope_parameters == real.rope_parameters, name
        assert tiny.get_text_config().model_type == real.get_text_config().model_type
    assert hf.zoo_config("deepseek_v32").topk_group > 1
    assert hf.zoo_config("qwen3_5").head_dim == hf.zoo_config("qwen3_5", full=True).head_dim


@hf_test
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("hf:deepseek_v32", 671.9),
        ("hf:minimax_m2", 228.7),
        ("hf:qwen3_5_moe", 396.3),
        ("hf:qwen3_next", 79.7),
        ("hf:qwen3", 8.2),
        ("hf:llama", 8.0),
    ],
)
def test_full_has_the_public_parameter_count_and_no_weights(name: str, billions: float) -> None:
    config = hf.zoo_config(name.removeprefix("hf:"), full=True)
    model = hf.random_model(config, dtype=torch.bfloat16, device="meta")
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.05)
    assert {p.device.type for p in model.parameters()} == {"meta"}


@hf_test
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_full_is_captured_on_the_meta_device(phase: Phase) -> None:
    target = resolve("hf:llama", full=True, layers=1, phase=phase)
    found = capture(target.fn, *target.fresh_inputs(), stop=True)
    assert found.breaks == ()
    (gm,) = found.graphs
    shapes = [tuple(node.meta["val"].shape) for node in gm.graph.find_nodes(op="placeholder")]
    assert (14336, 4096) in shapes
    assert len(gm.graph.nodes) > 100, "constant folding on meta would leave one node"


@hf_test
def test_folder_with_and_without_weights(tmp_path: Path) -> None:
    saved = resolve("hf:qwen3", dtype=torch.float32)
    assert isinstance(saved.fn, nn.Module)
    saved.fn.save_pretrained(tmp_path / "weights")  # type: ignore[operator]
    hf.zoo_config("qwen3").save_pretrained(tmp_path / "config")
    loaded = resolve(str(tmp_path / "weights"), dtype=torch.float32)
    assert torch.equal(logits(loaded), logits(saved))
    random = resolve(str(tmp_path / "config"), dtype=torch.float32, layers=1)
    assert random.config is not None
    assert random.config.num_hidden_layers == len(random.config.layer_types) == 1
    assert logits(random).shape == logits(saved).shape


@hf_test
def test_folder_too_large_for_random_weights(tmp_path: Path) -> None:
    hf.zoo_config("deepseek_v32", full=True).save_pretrained(tmp_path)
    with pytest.raises(BadTarget) as caught:
        resolve(str(tmp_path))
    assert str(caught.value) == (
        f"cannot use target '{tmp_path}': it has no weights, and random ones would take 1252 GiB\n"
        "  how to proceed: Use --full to inspect it on the meta device, or --layers to cut it."
    )
    target = resolve(str(tmp_path), full=True, layers=1)
    assert isinstance(target.fn, nn.Module)
    assert next(target.fn.parameters()).device.type == "meta"


@hf_test
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "the folder has no config.json"),
        ("{", "It looks like the config file"),
        ('{"model_type": "vit"}', "'vit' is not a causal language model"),
    ],
)
def test_unusable_folder(tmp_path: Path, config: str | None, reason: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(BadTarget, match="how to proceed: Give ") as caught:
        resolve(str(tmp_path))
    assert caught.value.reason.startswith(reason)


class Scale(nn.Module):
    def forward(self, x: Tensor, *, factor: float) -> Tensor:
        return x * factor


def test_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "scale.pt2"
    torch.export.save(torch.export.export(Scale(), (torch.ones(3),), {"factor": 2.0}), path)
    target = resolve(str(path))
    assert torch.equal(call(target), torch.full((3,), 2.0))  # type: ignore[arg-type]
    assert len(capture(target.fn, *target.fresh_inputs()).graphs) == 1


def test_missing_exported_program() -> None:
    with pytest.raises(BadTarget, match=r"cannot use target 'nowhere\.pt2': there is no such file"):
        resolve("nowhere.pt2")


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder, as a user of the command line has it."""
    path = tmp_path / "my_targets_module.py"
    path.write_text(
        "import torch\n"
        "def double():\n    return (lambda x: x * 2, (torch.ones(2),), {})\n"
        "class Group:\n    double = staticmethod(double)\n"
        "def wrong():\n    return 3\n"
        "def needs_one(x):\n    return x\n"
    )
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    return path


@pytest.mark.parametrize("attribute", ["double", "Group.double"])
def test_callable(user_module: Path, attribute: str) -> None:
    assert torch.equal(call(resolve(f"my_targets_module:{attribute}")), torch.full((2,), 2.0))  # type: ignore[arg-type]


def test_callable_errors(user_module: Path) -> None:
    hint = "unknown attribute of 'my_targets_module' 'doubel'; did you mean 'double'"
    with pytest.raises(UnknownName, match=hint):
        resolve("my_targets_module:doubel")
    with pytest.raises(BadTarget, match="it gave 'int'\n  how to proceed: Return"):
        resolve("my_targets_module:wrong")
    told = pytest.raises(BadTarget, match="how to proceed: A target is called without arguments, and returns")
    with told, refusing("my_targets_module:needs_one"):
        resolve("my_targets_module:needs_one")
    with pytest.raises(BadTarget, match="there is no module 'no_such_module'"):
        resolve("no_such_module:double")


def test_broken_import_inside_the_users_module_is_shown_as_it_is(user_module: Path) -> None:
    user_module.with_name("my_broken_module.py").write_text("import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        resolve("my_broken_module:anything")


@pytest.mark.parametrize(
    ("target", "close"),
    [("hf:deepseek_v3", "hf:deepseek_v32"), ("lama", "hf:llama"), ("hf:qwen35", "hf:qwen3")],
)
def test_unknown_target_gives_close_names(target: str, close: str) -> None:
    with pytest.raises(UnknownName) as caught:
        resolve(target)
    text = str(caught.value)
    assert text.startswith(f"unknown target '{target}'; did you mean ")
    assert repr(close) in text.splitlines()[0]
    assert all(name in text for name in names())


def test_missing_folder_and_bad_depth() -> None:
    with pytest.raises(BadTarget, match="there is no such folder"):
        resolve("./no/such/folder")
    with pytest.raises(BadTarget, match="0 layers were asked for"):
        resolve("hf:llama", layers=0)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("kernelweld.cli.hf.importlib.import_module", missing)
    with pytest.raises(MissingDependency) as caught:
        resolve("hf:llama")
    assert str(caught.value) == (
        "target 'hf:llama' needs the package 'transformers', which is not installed\n"
        "  how to proceed: pip install 'kernelweld[hf]'"
    )


def test_models_of_a_hub_are_not_downloaded() -> None:
    with pytest.raises(BadTarget, match=r"a model of a hub.*\n.*Models are not downloaded"):
        resolve("hf:Qwen/Qwen2-0.5B")
