"""The search for the pass or the weld with which a check fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from kernelweld.cli.captured import captured
from kernelweld.cli.targets import Target
from kernelweld.cli.trials import CannotBisect
from kernelweld.errors import BadTarget, PassFailed
from kernelweld.ir.report import WeldReport
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.editing import Passes, lower_of, on_the_plan
from kernelweld.passes.only_welds import OnlyWeldsPass
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.spec import format_pass
from kernelweld.passes.weld import WeldPlan, describe
from kernelweld.passes.weld_ids import weld_ids

#: Whether the check passes with what is on, in words, and the pipeline that has it on.
Passing = Callable[[str, str], bool]


@dataclass(frozen=True)
class Candidate:
    """A weld of the target by its id, and how many of the target's graphs have it."""

    id: str
    report: WeldReport
    graphs: int = 1


@dataclass(frozen=True)
class WeldFound:
    """The weld at ``place``, counted from 1, of ``among``: with it alone the check fails.

    Whether it fails ``without`` it too, by another weld, was not tried.
    """

    weld: Candidate
    place: int
    among: int
    pipeline: str
    without: str


@dataclass(frozen=True)
class WeldsFound:
    """No weld alone: the check fails with ``welds``, the first of ``among``, not without their last."""

    welds: tuple[Candidate, ...]
    among: int
    pipeline: str


@dataclass(frozen=True)
class PassFound:
    """A pass: the check fails with ``pipeline``, which has no weld, and passes ``without`` that pass."""

    text: str
    pipeline: str
    without: str


@dataclass(frozen=True)
class NotFound:
    """The check fails without any pass."""

    pipeline: str


Found = WeldFound | WeldsFound | PassFound | NotFound


@dataclass(frozen=True)
class Candidates:
    """The welds of a target in the order of its graphs; why a pass failed there, if one did."""

    welds: tuple[Candidate, ...]
    failures: tuple[PassFailed, ...] = ()


@dataclass(frozen=True)
class RecordWelds(Pass):
    """Keeps ids and reports of the planned welds; changes nothing."""

    name = "record-welds"

    found: list[Candidate] = field(default_factory=list, compare=False)

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        ids = weld_ids(gm.graph, (context.plan or WeldPlan(())).welds)
        self.found.extend(Candidate(name, describe(weld)) for weld, name in ids.items())
        return PassResult(modified=False, count=len(ids))


def candidates(target: Target, passes: Passes, *, merge: bool = True, stop: bool = False) -> Candidates:
    """What ``passes`` plan to weld in the graphs of one call of ``target``. ``stop``: see ``captured``."""
    record = RecordWelds()
    planning = on_the_plan(passes, record)
    pipeline = Pipeline(planning[: planning.index(record) + 1])
    results = [pipeline.run(graph) for graph in captured(target, merge=merge, stop=stop).graphs]
    welds: dict[str, Candidate] = {}
    for one in record.found:
        before = welds.get(one.id)
        welds[one.id] = one if before is None else replace(before, graphs=before.graphs + 1)
    failures = tuple(result.failure for result in results if result.failure is not None)
    return Candidates(tuple(welds.values()), failures)


def search(target: str, passes: Passes, welds: Sequence[Candidate], check: Passing) -> Found:
    """Finds what makes ``check`` fail: one of ``welds``, or else one of ``passes``.

    Raises ``CannotBisect`` if it does not fail, and ``BadTarget`` if a weld that is none of ``welds`` is
    guilty.
    """
    if check("everything", str(Pipeline(passes))):
        advice = "Give a command that fails with kernelweld: it has to exit with another code than 0."
        raise CannotBisect("the check passes with everything on", advice)
    if welds and check(f"without the {len(welds)} welds", _without(passes, welds)):
        return _guilty_weld(passes, welds, check)
    if check("no weld", _with_plan(passes, OnlyWeldsPass())):
        advice = (
            "Give the target that the command compiles, with its --phase, --dtype and sizes, and the "
            "--pipeline that it runs."
        )
        reason = "its graph is not the one that CMD compiles: a weld is at fault that it does not have"
        raise BadTarget(target, reason, advice)
    return _guilty_pass(passes, check)


def _guilty_weld(passes: Passes, welds: Sequence[Candidate], check: Passing) -> Found:
    """Halves the first welds with which the check fails; it passes without any of ``welds``."""
    good, bad, failing = 0, len(welds), str(Pipeline(passes))
    while bad - good > 1:
        middle = (good + bad) // 2
        pipeline = _without(passes, welds[middle:])
        if check(f"the first {middle} of {len(welds)} welds", pipeline):
            good = middle
        else:
            bad, failing = middle, pipeline
    guilty = welds[bad - 1]
    alone = _with_plan(passes, OnlyWeldsPass(ids=(guilty.id,)))
    if check(f"only weld {bad} of {len(welds)}", alone):
        return WeldsFound(tuple(welds[:bad]), len(welds), failing)
    return WeldFound(guilty, bad, len(welds), alone, _without(passes, [guilty]))


def _guilty_pass(passes: Passes, check: Passing) -> Found:
    """Halves the first passes with which the check fails; welds are no part of it."""
    order = _order(passes)
    points = [tuple(passes[i] for i in sorted(order[:count])) for count in range(len(order) + 1)]
    texts = [_with_plan(some, OnlyWeldsPass()) for some in points]
    if not check("no pass", texts[0]):
        return NotFound(texts[0])
    good, bad = 0, len(texts) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if check(_named(points[middle]), texts[middle]):
            good = middle
        else:
            bad = middle
    return PassFound(format_pass(passes[order[bad - 1]]), texts[bad], texts[good])


def _order(passes: Passes) -> list[int]:
    """The places of ``passes`` in the order in which they are put in: ``lower`` first, so that the graph can
    run whatever else is there.
    """
    last = lower_of(passes)
    return sorted(range(len(passes)), key=lambda i: passes[i] is not last)


def _named(passes: Passes) -> str:
    return f"no weld, passes {', '.join(one.name for one in passes)}"


def _without(passes: Passes, welds: Sequence[Candidate]) -> str:
    if not welds:
        return str(Pipeline(passes))
    return _with_plan(passes, OnlyWeldsPass(without=tuple(one.id for one in welds)))


def _with_plan(passes: Passes, only: OnlyWeldsPass) -> str:
    return str(Pipeline(on_the_plan(passes, only)))
