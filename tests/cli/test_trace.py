"""``kernelweld trace``: what is attributed to what, and traces that are none."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import Result

from kernelweld.cli.tracing import Event, attribute, read
from kernelweld.ir.report import GraphReport, Launches, Report, WeldReport

Command = Callable[..., Result]
Trace = dict[str, object]

NORM = WeldReport("rms_norm", ("rms_norm{eps=1e-06}",), ("m.py:1", "m.py:2"), ("rms_norm",))
OTHER = WeldReport("rms_norm", ("rms_norm{eps=1e-05}",), ("m.py:9",), ("rms_norm",))
GATE = WeldReport("gate_mul", ("gate_mul",), ("m.py:20",), ("gate_mul",))


def report(*welds: WeldReport) -> Report:
    return Report((GraphReport(9, {}, (), welds, Launches(9, 3)),))


def kernel(name: str, start: float, us: float = 2.0, *, cat: str = "kernel", launch: int = 0) -> Trace:
    arguments = {"device": 0, "stream": 7, "correlation": launch}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": start,
        "dur": us,
        "pid": 0,
        "tid": 7,
        "args": arguments,
    }


def launch(number: int, start: float, tid: int = 1) -> Trace:
    found = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start, "dur": 1.0}
    return {**found, "pid": 1, "tid": tid, "args": {"correlation": number}}


def function(name: str, start: float, us: float, tid: int = 1) -> Trace:
    return {"ph": "X", "cat": "python_function", "name": name, "ts": start, "dur": us, "pid": 1, "tid": tid}


def written(path: Path, *events: Trace) -> Path:
    text = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def rows(kernels: Sequence[Event], found: Report) -> dict[tuple[str, tuple[str, ...]], tuple[int, float]]:
    return {(row.name, row.lines): (row.count, row.us) for row in attribute(kernels, found).rows}


def test_welds_of_one_kernel_are_told_apart_by_their_order() -> None:
    events = [Event("rms_norm", "other", at, at) for at in (1.0, 2.0, 3.0, 4.0)]
    found = rows(events, report(NORM, OTHER))
    assert found == {("rms_norm", ("m.py:1", "m.py:2")): (2, 4.0), ("rms_norm", ("m.py:9",)): (2, 6.0)}


def test_runs_that_do_not_come_out_even_belong_to_all() -> None:
    events = [Event("rms_norm", "other", at, 1.0) for at in (1.0, 2.0, 3.0)]
    assert rows(events, report(NORM, OTHER)) == {("rms_norm", ("m.py:1", "m.py:2", "m.py:9")): (3, 3.0)}


def test_names_that_identifiers_cannot_hold() -> None:
    weld = WeldReport("softcap.v2_rms_norm", ("rms_norm",), ("m.py:1",), ())
    found = attribute([Event("softcap_v2_rms_norm", "other", 0.0, 1.0)], report(weld))
    assert [row.kind for row in found.rows] == ["weld"]


def test_a_weld_that_did_not_run_is_named() -> None:
    found = attribute([Event("rms_norm", "other", 0.0, 1.0)], report(NORM, GATE))
    assert found.missing == ("gate_mul",)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_red_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0", "Inductor"),
        ("triton_poi_fused_bmm_mul_relu_view_4", "Inductor"),
        ("triton_tem_fused_mm_3", "Inductor"),
        ("nvjet_sm90_tst_128x8_64x12_4x1_v_bz_splitK_TNT", "product"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)", "product"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3", "product"),
        ("internal::gemvx::kernel<int, int, float, float>(cublasGemvParamsEx<int>)", "product"),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16", "attention"),
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>(Flash_fwd_params)", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)", "collective"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 1, false>(float)", "torch"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("Memset (Device)", "copy"),
        ("my_kernel", "other"),
    ],
)
def test_kinds(name: str, kind: str, tmp_path: Path) -> None:
    cat = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(name.split()[0], "kernel")
    (event,) = read(written(tmp_path / "run.json", kernel(name, 1.0, cat=cat)))
    assert event.kind == kind


def test_the_users_innermost_function_is_the_place(tmp_path: Path) -> None:
    path = written(
        tmp_path / "run.json.gz",
        function("serve.py(10): main", 0, 100),
        function("site-packages/transformers/models/llama/modeling_llama.py(58): forward", 1, 50),
        function("site-packages/torch/nn/functional.py(7): silu", 2, 10),
        function("<built-in method silu>", 3, 5),
        launch(1, 4),
        function("/tmp/torchinductor_me/ab/cab.py(3): call", 60, 20),
        launch(2, 61),
        launch(3, 5, tid=2),
        kernel("a", 200, launch=1),
        kernel("b", 210, launch=2),
        kernel("c", 220, launch=3),
    )
    lines = {event.name: event.line for event in read(path)}
    llama = "site-packages/transformers/models/llama/modeling_llama.py:58"
    assert lines == {"a": llama, "b": None, "c": None}, "of compiled code the caller says nothing"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("run.json", b"not json", "it is not JSON"),
        ("run.json", b'{"a": 1}', "it is no trace: it has no traceEvents"),
        ("run.json", b"[1, 2]", "it is no trace: it has no traceEvents"),
        ("run.json", b'{"traceEvents": [1, {"ph": "X", "cat": "cpu_op"}]}', "no GPU kernel ran in it"),
        ("run.json", b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]}', "an event of it lacks"),
        ("run.json.gz", b"not gzip", "it is not JSON"),
        ("run.json.gz", gzip.compress(b'{"traceEvents": []}' * 100, mtime=0)[:-20], "it is not JSON"),
        ("run.json", b"\xff\xfe", "it is not JSON"),
    ],
)
def test_files_that_are_no_traces(
    kernelweld_command: Command, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = kernelweld_command("trace", str(tmp_path / name), "hf:llama")
    assert done.exit_code == 2
    assert f"cannot use the trace '{tmp_path / name}': {reason}" in done.stderr
    assert "how to proceed" in done.stderr


def test_a_file_that_is_not_there(kernelweld_command: Command, tmp_path: Path) -> None:
    done = kernelweld_command("trace", str(tmp_path / "run.json"), "hf:llama")
    assert done.exit_code == 2
    assert "No such file" in done.stderr and "how to proceed" in done.stderr


def test_the_table_and_its_json(kernelweld_command: Command, models: str, tmp_path: Path) -> None:
    weld = "residual_add_rms_norm__gate_mul"
    events = [kernel(weld, at, 3.0) for at in (1, 11)] + [kernel("nvjet_tst", at, 5.0) for at in (5, 15)]
    path = written(tmp_path / "run.json", *events)
    done = kernelweld_command("trace", str(path), f"{models}:target")
    assert done.exit_code == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["run.json:", "4", "kernels,", "16.0", "µs", "on", "the", "GPU"]
    assert ["product", "2", "10.0", "62.5%"] in lines
    (row,) = (line for line in lines if weld in line)
    assert row[:6] == ["6.0", "37.5%", "2", "3.00", "weld", weld]
    assert row[6].startswith(f"{models}.py:")
    found = json.loads(kernelweld_command("trace", str(path), f"{models}:target", "--json").stdout)
    assert (found["us"], found["missing"]) == (16.0, [])
    assert found["kinds"] == {"product": {"count": 2, "us": 10.0}, "weld": {"count": 2, "us": 6.0}}
    (mine,) = (row for row in found["kernels"] if row["kind"] == "weld")
    assert [word.partition("{")[0] for word in mine["words"]] == ["residual_add", "rms_norm", "gate_mul"]


def test_kernels_that_took_no_time(kernelweld_command: Command, models: str, tmp_path: Path) -> None:
    path = written(tmp_path / "run.json", kernel("k", 0.0, 0.0))
    done = kernelweld_command("trace", str(path), f"{models}:target")
    assert done.exit_code == 0, done.stderr
    assert "1 kernels, 0.0 µs on the GPU" in done.stdout


def test_only_so_many_are_shown(kernelweld_command: Command, models: str, tmp_path: Path) -> None:
    path = written(tmp_path / "run.json", *(kernel(f"kernel_{i}", i, 1.0 + i) for i in range(5)))
    shown = kernelweld_command("trace", str(path), f"{models}:target", "--top", "2").stdout
    assert "kernel_4" in shown and "kernel_3" in shown and "kernel_2" not in shown
    assert "and 3 more, 6.0 µs" in shown
    assert "not in the trace: residual_add_rms_norm__gate_mul" in shown


@pytest.mark.hf
def test_a_profile_of_a_gpu(kernelweld_command: Command) -> None:
    """Two decode steps of the tiny Llama on an H200, the kernels' names and times: welds of one kernel are
    told apart. Its rotations are no welds of TARGET: attention of a CPU takes their kernels in.
    """
    path = Path(__file__).with_name("llama_decode_trace.json")
    done = kernelweld_command("trace", str(path), "hf:llama", "--phase", "decode", "--batch", "2", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["missing"] == []
    assert {kind: of["count"] for kind, of in found["kinds"].items()} == {
        "product": 18, "attention": 4, "Inductor": 20, "weld": 12, "other": 4, "copy": 2
    }  # fmt: skip
    norms = [row for row in found["kernels"] if row["kernel"] == "residual_add_rms_norm"]
    assert sorted(row["count"] for row in norms) == [4, 4]
    assert len({tuple(row["lines"]) for row in norms}) == 2
