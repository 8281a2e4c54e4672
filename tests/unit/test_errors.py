"""Full texts of every error and warning: what happened, where, how to proceed."""

from __future__ import annotations

import inspect
import pickle
import warnings

import pytest

from kernelweld import errors
from kernelweld.errors import KernelweldError, KernelweldWarning

CASES: list[tuple[KernelweldError, str]] = [
    (
        KernelweldError(),
        "kernelweld failed\n  how to proceed: Run the function without kernelweld and report this error.",
    ),
    (
        errors.UnknownName("pass", "rais", ("canonicalize", "raise", "plan")),
        "unknown pass 'rais'; did you mean 'raise'?\n"
        "  how to proceed: Use one of: canonicalize, raise, plan.",
    ),
    (
        errors.UnknownName("option", "zzz", ("max-tasks",)),
        "unknown option 'zzz'\n  how to proceed: Use one of: max-tasks.",
    ),
    (
        errors.UnknownName("option", "x", ()),
        "unknown option 'x'\n  how to proceed: There is no option to choose.",
    ),
    (
        errors.UnknownName("pattern", "p", tuple(f"q{i:02d}" for i in range(18))),
        "unknown pattern 'p'\n"
        "  how to proceed: Use one of: q00, q01, q02, q03, q04, q05, q06, q07, q08, q09, "
        "q10, q11, q12, q13, q14, q15 and 2 more.",
    ),
    (
        errors.BadOffer("pass", "p", "m:P", "TypeError: m:P is not a Pass"),
        "pass 'p' (m:P) cannot be used: TypeError: m:P is not a Pass\n"
        "  how to proceed: Repair or uninstall the package that offers it.",
    ),
    (
        errors.BadPipeline("canonicalize,,raise", 13, "expected a pass name"),
        "cannot read the pipeline: expected a pass name at character 14\n"
        "    canonicalize,,raise\n"
        "                 ^\n"
        "  how to proceed: Write passes as 'name,name{option=value option=value},name'.",
    ),
    (
        errors.BadTarget("m.pt2", "there is no such file", "Check the path."),
        "cannot use target 'm.pt2': there is no such file\n  how to proceed: Check the path.",
    ),
    (
        errors.BadTrace("run.json", "no GPU kernel ran in it", "Profile on a GPU."),
        "cannot use the trace 'run.json': no GPU kernel ran in it\n  how to proceed: Profile on a GPU.",
    ),
    (
        errors.BadCheckpoint("v32", ["a: expected [4], missing", "b: not expected, found [2, 3]"]),
        "the weights in 'v32' are not those of the model that its config.json describes\n"
        "    a: expected [4], missing\n"
        "    b: not expected, found [2, 3]\n"
        "  how to proceed: Fetch the checkpoint again, or use the config.json that belongs to it.",
    ),
    (
        errors.MissingDependency("transformers", "target 'hf:llama'", "hf"),
        "target 'hf:llama' needs the package 'transformers', which is not installed\n"
        "  how to proceed: pip install 'kernelweld[hf]'",
    ),
    (
        errors.NotInterpreting("kernelweld verify"),
        "kernelweld verify needs Triton's interpreter, and Triton was imported without it\n"
        "  how to proceed: Set the environment variable TRITON_INTERPRET=1 before Python starts.",
    ),
    (
        errors.NotAModule("int", source="serve.py:3"),
        "fuse() takes an nn.Module or a function, not 'int'\n"
        "  at serve.py:3\n"
        "  how to proceed: Pass the model itself, or decorate its forward with @kernelweld.fuse.",
    ),
    (
        errors.NotFused("Net"),
        "there is no report: this Net was not fused\n"
        "  how to proceed: Call kernelweld.fuse on it first; a copy of a fused model is a plain model again.",
    ),
    (
        errors.NotInterpreting(),
        "backend='interpret' needs Triton's interpreter, and Triton was imported without it\n"
        "  how to proceed: Set the environment variable TRITON_INTERPRET=1 before Python starts.",
    ),
    (
        errors.BadOperand("quant", "scale", "shape [3, 2]", "one for each row"),
        "quant does not take shape [3, 2] as 'scale'\n  how to proceed: Give one for each row.",
    ),
    (
        errors.NeedsGPU("torch sees no CUDA device"),
        "kernels cannot be timed here: torch sees no CUDA device\n"
        "  how to proceed: Run it on a machine with a CUDA device, without TRITON_INTERPRET, or pass "
        "--dry-run for bytes and predicted launches.",
    ),
    (
        errors.BadOption("merge_gemms", "no", "True or False"),
        "option 'merge_gemms' cannot be 'no'\n  how to proceed: Give True or False.",
    ),
    (
        errors.UnsupportedGraph("it holds a while_loop", source="model.py:12 in forward: while_loop(...)"),
        "this graph cannot be welded: it holds a while_loop\n"
        "  at model.py:12 in forward: while_loop(...)\n"
        "  how to proceed: Move that operation out of the fused function, or use "
        "strict=False to run it as it is.",
    ),
    (
        errors.InvalidGraph(("v3 has no meta['val']", "v4 is used before it is made")),
        "the graph breaks 2 rules of the IR\n"
        "    v3 has no meta['val']\n"
        "    v4 is used before it is made\n"
        "  how to proceed: Run the pipeline with verify-each to find the pass that left "
        "it so, and report that pass.",
    ),
    (
        errors.TrainingMode(),
        "the model was called with gradients enabled, and welds have no backward\n"
        "  how to proceed: Call it under torch.no_grad() or torch.inference_mode().",
    ),
    (
        errors.GraphBreak(("print() is not traced",)),
        "the function has 1 graph break; no weld crosses one\n"
        "    print() is not traced\n"
        "  how to proceed: Remove them (TORCH_LOGS=graph_breaks shows each), or use "
        "strict=False to weld between them.",
    ),
    (
        errors.PassFailed(
            "raise", "KeyError: 'val'", "mul_3", source="model.py:9", excerpt="%v3 = mul(%v1, %v2)"
        ),
        "pass 'raise' failed at node 'mul_3': KeyError: 'val'\n"
        "    %v3 = mul(%v1, %v2)\n"
        "  at model.py:9\n"
        "  how to proceed: Leave 'raise' out of the pipeline, and report this error with the source line.",
    ),
    (
        errors.VerificationFailed("rms_norm_0", 0.03125, 0.0078125),
        "weld 'rms_norm_0' is wrong: error 0.0312, allowed 0.00781\n"
        "  how to proceed: Do not use this weld: run without kernelweld, and report the "
        "weld with the source line.",
    ),
    (
        errors.CodegenFailed("rope_1", "tile of 65536 columns does not fit"),
        "no kernel for weld 'rope_1': tile of 65536 columns does not fit\n"
        "  how to proceed: Use strict=False to run these operations unfused, and report this error.",
    ),
]


@pytest.mark.parametrize(("error", "text"), CASES, ids=lambda case: type(case).__name__)
def test_full_text(error: KernelweldError, text: str) -> None:
    assert str(error) == text


def test_every_error_has_a_text_case() -> None:
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, KernelweldError)}
    assert {type(error) for error, _ in CASES} == classes


def test_caught_by_the_base_and_shown_by_raise() -> None:
    with pytest.raises(KernelweldError, match=r"unknown target 'hf:lama'; did you mean 'hf:llama'\?"):
        raise errors.UnknownName("target", "hf:lama", ("hf:llama", "hf:qwen3"))


@pytest.mark.parametrize("error", [error for error, _ in CASES], ids=lambda error: type(error).__name__)
def test_survives_pickling_to_another_process(error: KernelweldError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_warning_is_one_line_with_cause_and_remedy() -> None:
    source = "model.py:7 in forward:\n  y = n(x)"
    error = errors.CodegenFailed("rms_norm", "a row is too wide", source=source)
    assert str(KernelweldWarning.of(error)) == (
        "kernelweld: no kernel for weld 'rms_norm': a row is too wide (model.py:7 in forward: y = n(x)). "
        "Use strict=False to run these operations unfused, and report this error."
    )


def test_warning_category_can_be_filtered() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn(KernelweldWarning.of(errors.TrainingMode()), stacklevel=1)
    assert [w.category for w in seen] == [KernelweldWarning]
    assert str(seen[0].message) == (
        "kernelweld: the model was called with gradients enabled, and welds have no backward. "
        "Call it under torch.no_grad() or torch.inference_mode()."
    )
