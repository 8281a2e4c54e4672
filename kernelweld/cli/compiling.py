"""The kernels of a target, each compiled for GPUs that need not be there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from kernelweld.cli.render import plain_table
from kernelweld.cli.welded import Welded
from kernelweld.codegen.cache import write_text
from kernelweld.codegen.crosscompile import STAGES, compile_for, gpu_target, launch_for
from kernelweld.codegen.crosscompile_worker import Compiled
from kernelweld.codegen.emit import Kernel, emit
from kernelweld.codegen.task import WeldProgram
from kernelweld.errors import CodegenFailed, UnknownName

SOURCE = "source"
_ENDINGS: Mapping[str, str] = {SOURCE: "py"}


@dataclass(frozen=True)
class Wanted:
    """What to compile for, and which texts of it to keep."""

    targets: tuple[str, ...]
    stages: tuple[str, ...] = ()

    @classmethod
    def parsed(cls, targets: str, stages: str) -> Wanted:
        """From lists with commas between. Raises what a user can act on, before anything is built."""
        wanted = cls(_items(targets), _items(stages))
        backends = dict.fromkeys(gpu_target(name)[1] for name in wanted.targets)
        known = (SOURCE, *dict.fromkeys(stage for backend in backends for stage in STAGES[backend]))
        for stage in wanted.stages:
            if stage not in known:
                raise UnknownName(f"stage of {targets}", stage, known)
        return wanted

    def of(self, target: str) -> tuple[str, ...]:
        """The stages that ``target`` has."""
        return tuple(s for s in self.stages if s in (SOURCE, *STAGES[gpu_target(target)[1]]))


@dataclass(frozen=True)
class Built:
    """One kernel, of ``count`` welds, for one target: ``name`` tells it from others of the same words.
    ``failure`` says why there is no ``compiled``.
    """

    name: str
    count: int
    target: str
    kernel: Kernel
    compiled: Compiled | None
    failure: CodegenFailed | None = None

    def texts(self, stages: Sequence[str]) -> Iterator[tuple[str, str]]:
        """File name and text of each of ``stages``."""
        found = {} if self.compiled is None else {**self.compiled.texts, SOURCE: self.kernel.source}
        for stage in stages:
            if stage in found:
                yield file_name(self.name, self.target, stage), found[stage]

    def as_dict(self) -> dict[str, object]:
        """As JSON has it; a kernel that does not compile has an error in place of its sizes."""
        shown: dict[str, object] = {"name": self.name, "count": self.count, "target": self.target}
        if self.compiled is None:
            return {**shown, "error": str(self.failure)}
        sizes = ("registers", "stack_bytes", "shared_bytes", "binary_bytes")
        launch = {"num_warps": self.kernel.launch.num_warps}
        return shown | launch | {name: getattr(self.compiled, name) for name in sizes}


def file_name(name: str, target: str, stage: str) -> str:
    return f"{name}.{target}.{_ENDINGS.get(stage, stage)}"


def names(welds: Iterable[str]) -> tuple[str, ...]:
    """The names of welds, numbered where several kernels have one."""
    seen: Counter[str] = Counter()
    return tuple(_numbered(name, seen) for name in welds)


def _names(found: Welded) -> tuple[str, ...]:
    return names(one.name for one, _ in found.welds)


def _numbered(name: str, seen: Counter[str]) -> str:
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}-{seen[name]}"


def files(found: Welded, wanted: Wanted, folder: Path) -> tuple[Path, ...]:
    """The files that ``write`` makes."""
    targets = [(target, stage) for target in wanted.targets for stage in wanted.of(target)]
    return tuple(folder / file_name(name, *which) for name in _names(found) for which in targets)


def refuse_to_overwrite(paths: Sequence[Path]) -> None:
    """Raises ``FileExistsError`` for the first that exists."""
    for path in paths:
        if path.exists():
            remedy = "write to another place, or give --force to replace it"
            raise FileExistsError(f"{path} exists, and nothing was written; {remedy}")


def build_all(found: Welded, wanted: Wanted, starting: Callable[[str], None]) -> Iterator[Built]:
    """Every kernel for every target; ``starting`` is told of each kernel before it is compiled."""
    for number, (name, (one, count)) in enumerate(zip(_names(found), found.welds, strict=True), 1):
        starting(f"{name} ({number} of {len(found.welds)})")
        yield from build(name, count, one.program, wanted)


def build(name: str, count: int, program: WeldProgram, wanted: Wanted) -> Iterator[Built]:
    """The kernel of ``program`` for every target."""
    for target in wanted.targets:
        yield _built(name, count, program, target, wanted.of(target))


def _built(name: str, count: int, program: WeldProgram, target: str, stages: Sequence[str]) -> Built:
    kernel = emit(program, launch_for(program, target))
    try:
        (compiled,) = compile_for(kernel, (target,), [stage for stage in stages if stage != SOURCE])
    except CodegenFailed as failure:
        return Built(name, count, target, kernel, None, failure)
    return Built(name, count, target, kernel, compiled)


def write(built: Sequence[Built], wanted: Wanted, folder: Path) -> int:
    """Writes the texts of each; how many."""
    texts = [text for one in built for text in one.texts(wanted.of(one.target))]
    for name, text in texts:
        write_text(folder / name, text)
    return len(texts)


def show(console: Console, title: str, built: Sequence[Built]) -> None:
    """One line a kernel and target."""
    console.print(f"[bold]{escape(title)}[/]")
    if not built:
        console.print("  no welds")
        return
    sizes = ("registers", "spills", "shared memory", "binary")
    table = plain_table("welds", "kernel", "compiled for", "warps", *sizes)
    last = ""
    for one in built:
        repeated = one.name == last
        first = ("", "") if repeated else (f"{one.count} ×", escape(one.name))
        table.add_row(*first, one.target, str(one.kernel.launch.num_warps), *_sizes(one.compiled))
        last = one.name
    console.print(table)


def _sizes(compiled: Compiled | None) -> tuple[str, ...]:
    if compiled is None:
        return ("[red]FAILED[/]",)
    spills = f"{compiled.stack_bytes} B"
    return (
        str(compiled.registers),
        spills if compiled.stack_bytes == 0 else f"[yellow]{spills}[/]",
        f"{compiled.shared_bytes} B",
        f"{compiled.binary_bytes} B",
    )


def _items(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
