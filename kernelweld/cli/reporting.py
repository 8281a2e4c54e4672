"""Everything that a report shows of a target, put together from one run of the passes."""

from __future__ import annotations

import datetime
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version

import torch
import triton
from torch import fx

import kernelweld
from kernelweld.cli.benching import figures
from kernelweld.cli.captured import PIPELINE, captured
from kernelweld.cli.code import codes, shown_file
from kernelweld.cli.compiling import Wanted, build, names
from kernelweld.cli.layers import Layer, Numbered, layers
from kernelweld.cli.reported import MissShown, Shown, WeldShown
from kernelweld.cli.targets import Target
from kernelweld.cli.times import Times
from kernelweld.codegen.emit import Kernel, emit
from kernelweld.codegen.task import WeldProgram, without_sources
from kernelweld.ir.origin import WELDED
from kernelweld.ir.report import GraphReport, Launches, NearMiss
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.launcher import program_of
from kernelweld.passes.launches.listing import Launch, listed, one_by_one
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.summary import run_reported
from kernelweld.passes.verification.specimen import Specimen, specimen
from kernelweld.passes.weld import Weld, WeldPlan, describe

_NODE = re.compile(r"%\w+")
_KIND = re.compile(r"\w+")

#: What of a configuration is a dimension that people know a model by.
_DIMENSIONS: Mapping[str, str] = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "KV heads",
    "head_dim": "head dim",
    "intermediate_size": "MLP",
    "num_experts": "experts",
    "n_routed_experts": "experts",
    "num_local_experts": "experts",
    "vocab_size": "vocabulary",
}


@dataclass(frozen=True)
class First:
    """The first weld of a kernel, taken out of its graph, with its words by row task."""

    specimen: Specimen
    tasks: tuple[tuple[str, ...], ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class RecordWelds(Pass):
    """Keeps the first weld of every kernel, and which welds of the last graph share it; changes nothing.

    ``numbers``: the number of a kernel in ``firsts``, by the names of a weld's steps.
    """

    name = "record-welds"

    firsts: dict[WeldProgram, First] = field(default_factory=dict, compare=False)
    numbers: dict[tuple[str, ...], int] = field(default_factory=dict, compare=False)

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        plan = context.plan or WeldPlan(())
        known = {program: i for i, program in enumerate(self.firsts)}
        self.numbers.clear()
        for weld in plan.welds:
            program = without_sources(program_of(weld)[0])
            if program not in known:
                known[program] = len(self.firsts)
                self.firsts[program] = _first(weld)
            self.numbers[tuple(step.name for step in weld.steps)] = known[program]
        return PassResult(modified=False, count=len(plan.welds))

    def numbered(self, launches: Iterable[Launch]) -> Iterator[Numbered]:
        """The launches of the last graph; those that are welds with the number of their kernel."""
        for launch in launches:
            yield launch, self.numbers.get(launch.nodes[-1].meta.get(WELDED, ()))


def _first(weld: Weld) -> First:
    tasks = tuple(tuple(map(str, chain.words)) for chain in weld.chains)
    return First(specimen(weld), tasks, describe(weld).sources)


@dataclass(frozen=True)
class Ran:
    """What the passes did to the graphs of a target; ``unfused``: their layers, each operator a launch."""

    reports: tuple[GraphReport, ...]
    layers: tuple[Layer, ...]
    firsts: tuple[First, ...]
    failures: tuple[str, ...]
    breaks: tuple[str, ...]
    unfused: tuple[Layer, ...] = ()


def run(target: Target, *, merge: bool, stop: bool) -> Ran:
    """Runs the passes on every graph of one call of ``target``. ``stop``: see ``captured``."""
    record = RecordWelds()
    *planning, lower = Pipeline.from_text(PIPELINE).passes
    pipeline = Pipeline((*planning, record, lower))
    found = captured(target, merge=merge, stop=stop)
    before: list[Numbered] = []
    after: list[Numbered] = []
    unfused: list[Numbered] = []
    reports, failures = [], []
    for gm in found.graphs:
        unfused += ((launch, None) for launch in one_by_one(gm.graph))
        before += ((launch, None) for launch in listed(gm.graph))
        result, report = run_reported(pipeline, gm)
        after += record.numbered(listed(gm.graph))
        reports.append(report)
        if result.failure is not None:
            failures.append(str(result.failure))
    used = list(dict.fromkeys(number for _, number in after if number is not None))  # as they run
    firsts = [list(record.firsts.values())[number] for number in used]
    after = [(launch, None if number is None else used.index(number)) for launch, number in after]
    rows = layers(before, after, _names(firsts))
    alone = layers(unfused, unfused, ())
    return Ran(tuple(reports), rows, tuple(firsts), tuple(failures), found.breaks, alone)


def _names(firsts: Sequence[First]) -> tuple[str, ...]:
    return names([one.specimen.name for one in firsts])


def shown(
    target: Target,
    found: Ran,
    facts: Mapping[str, str],
    wanted: Wanted,
    times: Times,
    starting: Callable[[str], None] = lambda text: None,
) -> Shown:
    """The report. Kernels are compiled for the GPUs of ``wanted``; ``starting`` is told of each before."""
    reports = found.reports
    misses = [miss for report in reports for miss in report.near_misses]
    welds = tuple(_welds(found, wanted, times, starting))
    launches = Launches(
        *(sum(getattr(one.launches, name) for one in reports) for name in ("before", "after"))
    )
    return Shown(
        target=target.name,
        date=datetime.date.today().isoformat(),
        facts={**facts, **dimensions(target)},
        versions=versions(),
        calls=sum(report.nodes for report in reports),
        launches=launches,
        words=_words(reports),
        layers=found.layers,
        welds=welds,
        misses=tuple(_misses(misses)),
        seconds=_added(report.seconds for report in reports),
        failures=found.failures,
        breaks=found.breaks,
    )


def versions() -> Mapping[str, str]:
    """Of what took part."""
    known = {"kernelweld": kernelweld.__version__, "torch": torch.__version__, "triton": triton.__version__}
    with suppress(PackageNotFoundError):
        known["transformers"] = version("transformers")
    return {**known, "Python": platform.python_version()}


def dimensions(target: Target) -> Mapping[str, str]:
    """What the configuration of a ``transformers`` model says of its size."""
    if target.config is None:
        return {}
    config = target.config.get_text_config()
    found = {label: getattr(config, name, None) for name, label in _DIMENSIONS.items()}
    return {label: str(value) for label, value in found.items() if isinstance(value, int)}


def _welds(found: Ran, wanted: Wanted, times: Times, starting: Callable[[str], None]) -> Iterator[WeldShown]:
    blocks = [(layer.name, block) for layer in found.layers for block in layer.after]
    for number, (name, first) in enumerate(zip(_names(found.firsts), found.firsts, strict=True)):
        homes = [home for home, block in blocks if block.weld == number]
        figure = figures(first.specimen, len(homes))
        starting(f"{name} ({number + 1} of {len(found.firsts)})")
        built = tuple(build(name, len(homes), first.specimen.program, wanted))
        yield WeldShown(
            name=name,
            count=len(homes),
            layers=tuple(dict.fromkeys(homes)),
            tasks=first.tasks,
            code=codes(first.sources),
            before=figure.launches,
            rows=figure.rows,
            moved=figure.moved,
            source=_readable(built[0].kernel if built else emit(first.specimen.program), first.sources),
            built=built,
            measured=times.of(first.specimen.program, figure),
        )


def _readable(kernel: Kernel, sources: Sequence[str]) -> str:
    """The kernel's source with the model's files under names that tell nothing about the machine."""
    text = kernel.source
    for path in {source.rpartition(":")[0] for source in sources}:
        text = text.replace(path, shown_file(path))
    return text


def _words(reports: Sequence[GraphReport]) -> Mapping[str, tuple[int, int]]:
    """How many words of each kind there are, and how many of them are in welds."""
    found, held = Counter[str](), Counter[str]()
    for report in reports:
        found.update(report.words)
        held.update(_KIND.match(word)[0] for weld in report.welds for word in weld.words)  # type: ignore[index]
    return {kind: (count, held[kind]) for kind, count in found.most_common()}


def _misses(misses: Sequence[NearMiss]) -> Iterator[MissShown]:
    """Those that differ in names of nodes only are one, the most frequent first."""
    groups: dict[object, list[NearMiss]] = {}
    for miss in misses:
        blank = replace(miss, anchor="", node="", reason=_NODE.sub("%", miss.reason))
        groups.setdefault(replace(blank, remedy=_NODE.sub("%", miss.remedy)), []).append(miss)
    for group in sorted(groups.values(), key=len, reverse=True):
        lines = [line for line in (group[0].source, group[0].node_source) if line]
        yield MissShown(group[0], len(group), codes(lines))


def _added(all_seconds: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """The time of every pass over all graphs; that of the recording is the report's own."""
    total = Counter[str]()
    for seconds in all_seconds:
        total.update(seconds)
    return {name: taken for name, taken in total.items() if name != RecordWelds.name}
