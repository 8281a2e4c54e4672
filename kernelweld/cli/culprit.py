"""What ``kernelweld bisect`` found, in words and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from kernelweld.cli.bisecting import Candidate, Found, NotFound, PassFound, WeldFound, WeldsFound
from kernelweld.cli.points import point
from kernelweld.cli.trials import Check, command_line, last_lines
from kernelweld.integrations.settings import VARIABLE
from kernelweld.passes.spec import parse
from kernelweld.tables import places

Fact = tuple[str, str]


def lines(target: str, found: Found, check: Check) -> Iterator[str]:
    """The culprit, what is known of it, and what to do next."""
    match found:
        case WeldFound(weld, place, among):
            yield f"weld {place} of {among} is at fault: {weld.report.name}, id {weld.id}"
            facts = [*_of_weld(weld), _again(found.pipeline, check), *_of_name(target, weld.report.name)]
            facts += [("others", f"too, if it fails: {command_line(check.command, found.without)}")]
        case WeldsFound(welds, among):
            yield (
                f"no weld fails alone: the first {len(welds)} of {among} fail together, and pass without the "
                f"last of them, {welds[-1].report.name}, id {welds[-1].id}"
            )
            name = welds[-1].report.name
            facts = [*_of_weld(welds[-1]), _again(found.pipeline, check), *_of_name(target, name)]
        case PassFound(text, pipeline, without):
            yield f"pass {text} is at fault, and no weld"
            facts = [("fails", command_line(check.command, pipeline))]
            facts += [("passes", command_line(check.command, without))]
            facts += [("see it", _diff(target, pipeline, without))]
        case NotFound():
            yield "kernelweld's passes are not the cause: the check fails without any of them"
            facts = _without_passes(found, check)
    yield from (f"  {label:<8}  {text}" for label, text in [*facts, _effort(check)])


def _of_weld(weld: Candidate) -> list[Fact]:
    facts = [("words", word) for word in weld.report.words[:1]]
    facts += [("", word) for word in weld.report.words[1:]]
    facts += [("lines", places(weld.report.sources))] if weld.report.sources else []
    return facts + ([("graphs", f"{weld.graphs} equal ones have it")] if weld.graphs > 1 else [])


def _again(pipeline: str, check: Check) -> Fact:
    return "again", command_line(check.command, pipeline)


def _of_name(target: str, name: str) -> list[Fact]:
    return [
        ("check it", f"kernelweld verify {target} --weld {name}"),
        ("take it", f"kernelweld eject {target} --weld {name} -o {name}.py"),
    ]


def _diff(target: str, pipeline: str, without: str) -> str:
    """The command line that shows what the pass does that ``pipeline`` has and ``without`` has not."""
    names, others = ([spec.name for spec in parse(text)] for text in (pipeline, without))
    pairs = enumerate(zip(names, others, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), len(others))
    before, after = (point(names, i) for i in (at - 1, at))
    return f"kernelweld diff {target} -p {shlex.quote(pipeline)} --from {before} --to {after}"


def _without_passes(found: NotFound, check: Check) -> list[Fact]:
    rest = (
        "the check itself, torch.compile, merged linear layers (merge_gemms), or a pipeline that the command "
        f"chooses by -p: then it does not read {VARIABLE}"
    )
    said = last_lines(check.done[-1].log).splitlines()
    facts = [("left", rest), _again(found.pipeline, check)]
    return facts + [("it says" if i == 0 else "", line) for i, line in enumerate(said)]


def _effort(check: Check) -> Fact:
    seconds = sum(trial.seconds for trial in check.done)
    return "checks", f"{len(check.done)}, {seconds:.1f} s"


def as_dict(target: str, found: Found, check: Check) -> Mapping[str, object]:
    """The culprit as JSON has it; with ``pipeline`` the check fails."""
    match found:
        case WeldFound(weld, place, among):
            kind, facts = "weld", {"weld": _weld(weld), "place": place, "among": among}
        case WeldsFound(welds, among):
            kind, facts = "welds", {"welds": [_weld(one) for one in welds], "among": among}
        case PassFound(text, _, without):
            kind, facts = "pass", {"pass": text, "passes_with": without}
        case NotFound():
            kind, facts = "nothing", {}
    again = {"pipeline": found.pipeline, "again": command_line(check.command, found.pipeline)}
    trials = [trial.as_dict() for trial in check.done]
    return {"target": target, "check": check.command, "found": kind, **facts, **again, "checks": trials}


def _weld(one: Candidate) -> Mapping[str, object]:
    report = one.report
    facts = {"name": report.name, "words": report.words, "sources": report.sources}
    return {"id": one.id, **facts, "graphs": one.graphs}
