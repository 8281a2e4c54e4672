"""Real vLLM engines with and without kernelweld: tokens, kernels of a decode step, time per output token.

One engine of a model runs vLLM's own default passes, the other with the configuration that ``kernelweld
vllm-config`` prints. All processes start side by side, then each is measured alone, both engines of a model
in turns.

    python benchmarks/vllm_engine.py [--models NAME ...] [--out benchmarks/results/vllm_engine.json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vllm_models import CASES, Case, register_text_only

BATCHES = (1, 8, 64)
PROMPT, DECODED, ROUNDS = 16, 128, 13
TOKENS = 32
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
VARIANTS = ("vllm", "kernelweld")


def _config(folder: Path) -> dict[str, object]:
    """What ``kernelweld vllm-config`` prints for a model."""
    from kernelweld.integrations.vllm.recommended import Serving, recommended
    from kernelweld.integrations.vllm.versions import installed

    model = json.loads((folder / "config.json").read_text())
    return recommended(model, Serving(installed())).config


class Engine:
    """One engine in this process."""

    def __init__(self, case: Case, folder: Path, variant: str) -> None:
        from vllm import LLM

        register_text_only()
        case.save(folder)
        start = time.monotonic()
        self.llm = LLM(
            str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=1024,
            max_num_seqs=max(BATCHES),
            dtype="bfloat16",
            gpu_memory_utilization=0.1,
            kv_cache_memory_bytes=2 << 30,  # measuring what is left fails beside the other engines
            attention_backend="TRITON_ATTN",
            enable_prefix_caching=False,
            compilation_config={
                "cudagraph_capture_sizes": list(BATCHES),
                **(_config(folder) if variant == "kernelweld" else {}),
            },
            **case.engine,
        )
        self.started = time.monotonic() - start

    def generate(self, batch: int, tokens: int) -> list[list[int]]:
        """Greedy tokens after prompts that differ."""
        from vllm import SamplingParams

        prompts = [
            {"prompt_token_ids": [(7 * i + 31 * j) % 4000 + 8 for j in range(PROMPT)]} for i in range(batch)
        ]
        params = SamplingParams(max_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True)
        return [list(one.outputs[0].token_ids) for one in self.llm.generate(prompts, params, use_tqdm=False)]

    def per_token(self, batch: int) -> float:
        """Microseconds of one decode step, prefill taken away."""
        times = []
        for tokens in (1, 1 + DECODED):
            start = time.perf_counter()
            self.generate(batch, tokens)
            times.append(time.perf_counter() - start)
        return (times[1] - times[0]) / DECODED * 1e6

    def kernels(self, batch: int) -> tuple[Counter[str], float]:
        """The kernels of 8 decode steps and the microseconds they ran: two runs, one 8 tokens longer."""
        (long, long_us), (short, short_us) = (self._profiled(batch, n) for n in (17, 9))
        return long - short, long_us - short_us

    def _profiled(self, batch: int, tokens: int) -> tuple[Counter[str], float]:
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            self.generate(batch, tokens)
            torch.cuda.synchronize()
        events = [e for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        kernels = [e for e in events if not e.name.startswith(("Memcpy", "Memset"))]
        return Counter(e.name for e in kernels), float(sum(e.time_range.elapsed_us() for e in kernels))


def serve(case: Case, variant: str, root: str, connection: Connection) -> None:
    """Answers questions about one engine until there are no more."""
    os.environ.update(SETTINGS, VLLM_CACHE_ROOT=f"{root}/cache")
    log = os.open(f"{root}/log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        engine = Engine(case, Path(root), variant)
        connection.send(engine.started)
        while (question := connection.recv()) is not None:
            name, *arguments = question
            connection.send(getattr(engine, name)(*arguments))
    except BaseException:
        traceback.print_exc()
        raise


class Remote:
    """An engine in a process of its own."""

    def __init__(self, name: str, variant: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.connection, other = mp.get_context("spawn").Pipe()
        self.process = mp.get_context("spawn").Process(
            target=serve, args=(CASES[name], variant, str(folder), other)
        )
        self.process.start()
        other.close()

    def answer(self) -> Any:  # noqa: ANN401 # whatever the question was
        """What the engine says; raises RuntimeError with its log where it died."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise RuntimeError((self.folder / "log").read_text(errors="replace")[-4000:]) from error

    def ask(self, *question: object) -> Any:  # noqa: ANN401
        """Asks and waits."""
        self.connection.send(question)
        return self.answer()

    def close(self) -> None:
        """Ends the process."""
        try:
            self.connection.send(None)
            self.process.join(60)
        except OSError:
            pass

    def lines(self) -> Iterator[str]:
        """What kernelweld said in the engine's log."""
        for line in (self.folder / "log").read_text(errors="replace").splitlines():
            if "kernelweld: " in line:
                yield line.split("kernelweld: ", 1)[1]


def compare(pair: dict[str, Remote]) -> dict[str, object]:
    """Both engines of one model."""
    tokens = {variant: remote.ask("generate", 8, TOKENS) for variant, remote in pair.items()}
    record: dict[str, object] = {
        "tokens": {"sequences": 8, "each": TOKENS, "equal_sequences": _equal(tokens), "ids": tokens},
        "log": list(pair["kernelweld"].lines()),
    }
    for remote in pair.values():
        for batch in BATCHES:
            remote.ask("generate", batch, 4)
    for batch in BATCHES:
        times: dict[str, list[float]] = {variant: [] for variant in pair}
        for _ in range(ROUNDS):
            for variant, remote in pair.items():
                times[variant].append(remote.ask("per_token", batch))
        record[f"batch {batch}"] = {
            variant: {"us_per_token": statistics.median(ts), "all": ts} for variant, ts in times.items()
        }
    for batch in BATCHES:
        for variant, remote in pair.items():
            names, busy = remote.ask("kernels", batch)
            figures = record[f"batch {batch}"][variant]  # type: ignore[index]
            figures.update(kernels=sum(names.values()) / 8, gpu_us=busy / 8)
            if batch == 1:
                figures["names"] = {name: count / 8 for name, count in names.most_common()}
    return record


def _equal(tokens: dict[str, list[list[int]]]) -> int:
    return sum(a == b for a, b in zip(tokens["vllm"], tokens["kernelweld"], strict=True))


def run(names: list[str], folder: Path, say: Callable[[str], None]) -> dict[str, object]:
    """Starts everything, then measures one model after another."""
    pairs = {
        name: {
            variant: Remote(name, variant, folder / name.replace(" ", "_") / variant) for variant in VARIANTS
        }
        for name in names
    }
    results: dict[str, object] = {}
    ready: dict[str, dict[str, float]] = {}
    for name, pair in pairs.items():
        try:
            ready[name] = {variant: remote.answer() for variant, remote in pair.items()}
            say(f"{name}: engines ready after {ready[name]}")
        except RuntimeError as error:
            say(f"--- {name} did not start\n{error}")
    for name in ready:
        try:
            results[name] = {"layers": CASES[name].layers, "start_s": ready[name], **compare(pairs[name])}
            say(f"{name}: {json.dumps(_short(results[name]))}")
        except RuntimeError as error:
            say(f"--- {name} failed\n{error}")
    for pair in pairs.values():
        for remote in pair.values():
            remote.close()
    return results


def _short(record: Any) -> dict[str, object]:  # noqa: ANN401 # JSON
    batches = {
        key: {v: [round(f["us_per_token"], 1), f["kernels"], round(f["gpu_us"], 1)] for v, f in value.items()}
        for key, value in record.items()
        if key.startswith("batch")
    }
    return {"equal": record["tokens"]["equal_sequences"], "log": record["log"], **batches}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/vllm_engine.json"))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    results = run(arguments.models, folder, lambda text: print(text, flush=True))
    from hf_layers import environment
    from vllm import __version__

    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    about = {**environment(), "vllm": __version__, "decoded": DECODED, "rounds": ROUNDS}
    arguments.out.write_text(json.dumps({"environment": about, "models": results}, indent=1) + "\n")
    return 0 if len(results) == len(arguments.models) else 1


if __name__ == "__main__":
    sys.exit(main())
