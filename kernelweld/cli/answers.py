"""The answers of ``kernelweld explain``: as text for people, and as JSON for scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from kernelweld.cli.explaining import CallSeen, Explanation, MissSeen, WeldSeen, WordSeen, operators
from kernelweld.cli.selection import Question, Selected, files, nearest
from kernelweld.ir.origin import Stop
from kernelweld.ir.report import NearMiss
from kernelweld.tables import places, short_source

_NODE = re.compile(r"%\w+")
_LISTED = 8  # operators or files of a line that are shown
_LOOKED_UP = "row by row, by the kernels that read it"
_UNPLANNED = "no weld holds it: the pipeline does not plan one, or dropped it"

#: One thing that is shown: its title, and what is said of it, by label.
Entry = tuple[str, tuple[tuple[str, str], ...]]


def show(console: Console, target: str, asked: Question, found: Explanation) -> None:
    """The answer, graph by graph; graphs that a line is not in are left out."""
    chosen = [asked.select(graph) for graph in found.graphs]
    if asked.line is not None and not any(
        one.calls or one.words or one.misses or one.welds for one in chosen
    ):
        console.print(escape(absent(asked, found)), soft_wrap=True)
        return
    for number, one in enumerate(chosen, 1):
        if asked.line is None or one != Selected(called=one.called):
            console.print(f"[bold]{escape(_title(target, number, asked, one))}[/]", soft_wrap=True)
            _show_graph(console, asked, one)


def absent(asked: Question, found: Explanation) -> str:
    """That a line is in no graph, with the nearest lines that are."""
    assert asked.line is not None
    near = nearest(asked.line, found.graphs)
    if near:
        lines = ", ".join(map(str, near))
        return f"{asked.line} is in no captured graph; the nearest lines that are: {lines}"
    known = ", ".join(files(found.graphs)[:_LISTED]) or "none that is known"
    return f"{asked.line} is in no captured graph, nor is another line of that file; files that are: {known}"


def as_dict(target: str, asked: Question, found: Explanation) -> Mapping[str, object]:
    """The answer as JSON has it."""
    chosen = [asked.select(graph) for graph in found.graphs]
    return {
        "target": target,
        "line": None if asked.line is None else str(asked.line),
        "kind": asked.kind,
        "graphs": [_graph(one) for one in chosen],
        "nearest_lines": [] if asked.line is None else list(nearest(asked.line, found.graphs)),
    }


def _graph(one: Selected) -> Mapping[str, object]:
    return {
        "called": one.called,
        "words": [_word(word) for word in one.words],
        "near_misses": [asdict(seen.miss) for seen in one.misses],
        "operators": operators(one.calls),
    }


def _word(word: WordSeen) -> Mapping[str, object]:
    return {
        "node": word.node,
        "kind": word.kind,
        "word": word.text,
        "sources": word.lines.sources,
        "weld": None if word.weld is None else _weld(word.weld),
        "left_out": None if word.left is None else asdict(word.left),
        "looked_up": word.looked_up,
        "stopped": None if word.stopped is None else asdict(word.stopped),
    }


def _weld(weld: WeldSeen) -> Mapping[str, object]:
    launches = {"before": weld.before, "after": 1}
    return {"kernel": weld.kernel, "tasks": weld.tasks, "sources": weld.sources, "launches": launches}


def _title(target: str, number: int, asked: Question, one: Selected) -> str:
    parts = [target, f"graph {number}"]
    if asked.line is not None:
        parts.append(f"{asked.line}, which calls" if one.called else str(asked.line))
    if asked.kind is not None:
        parts.append(asked.kind)
    return ", ".join(parts)


def _show_graph(console: Console, asked: Question, one: Selected) -> None:
    entries = [*map(_of_word, one.words), *map(_of_miss, one.misses)]
    for (title, facts), count, others in _alike(entries):
        console.print(f"  [bold]{count} ×[/] {escape(title)}", soft_wrap=True)
        for label, text in facts:
            more = f", and {others} more alike" if label == "node" and others else ""
            console.print(f"      [dim]{label:<10}[/]  {escape(text)}{more}", soft_wrap=True)
    if not entries:
        console.print(f"  {escape(_nothing(asked, one))}", soft_wrap=True)


def _of_word(word: WordSeen) -> Entry:
    facts = [] if word.stopped is None else [("ends here", _end(word.stopped))]
    if word.weld is not None:
        facts += _held(word.weld)
    elif word.looked_up:
        facts += [("looked up", _LOOKED_UP), ("lines", places(word.lines.sources))]
    elif word.left is None:
        facts += [("not welded", _UNPLANNED), ("lines", places(word.lines.sources))]
    else:
        facts += _left(word.left)
        facts.append(("lines", places(word.lines.sources)))
    return word.text, tuple(facts)


def _end(stop: Stop) -> str:
    return stop.reason + (f", at {short_source(stop.source)}" if stop.source else "")


def _held(weld: WeldSeen) -> list[tuple[str, str]]:
    tasks = " | ".join(weld.tasks)
    launches = f"{weld.before} launch{'' if weld.before == 1 else 'es'} → 1"
    return [("welded", f"in {weld.kernel} ({tasks}): {launches}"), ("lines", places(weld.sources))]


def _left(miss: NearMiss) -> list[tuple[str, str]]:
    reason = miss.reason.removeprefix("not welded: ")
    return [("not welded", f"{reason} [{miss.rule}]"), ("change", miss.remedy), ("node", _node(miss))]


def _of_miss(seen: MissSeen) -> Entry:
    miss = seen.miss
    return f"no {miss.kind}: {miss.reason}", (("change", miss.remedy), ("node", _node(miss)))


def _node(miss: NearMiss) -> str:
    """The node at fault with its line, and the anchor where it is another."""
    source = miss.node_source or miss.source
    at = f" at {short_source(source)}" if source else ""
    anchor = f", read from %{miss.anchor}" if miss.node not in ("", miss.anchor) else ""
    return f"%{miss.node or miss.anchor}{at}{anchor}"


def _alike(entries: Sequence[Entry]) -> Iterator[tuple[Entry, int, int]]:
    """Each entry once, with how often it is there but for names of nodes, and how many others that is."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(_NODE.sub("%", repr(entry)), []).append(entry)
    for group in groups.values():
        yield group[0], len(group), len(group) - 1


def _nothing(asked: Question, one: Selected) -> str:
    if asked.line is None or asked.kind is not None or (asked.near_misses and (one.words or one.welds)):
        kind = "" if asked.kind is None else f" of the kind {asked.kind}"
        return f"nothing: no {'near miss' if asked.near_misses else 'word and no near miss'}{kind}"
    welds = " and ".join(dict.fromkeys(weld.kernel for weld in one.welds))
    part = f"part of the weld {welds}; " if welds else ""
    return f"{part}no word: {_counts(one.calls)}; {_starts(one.calls)}"


def _counts(calls: Sequence[CallSeen]) -> str:
    counts = operators(calls)
    shown = [f"{count} {name}" for name, count in list(counts.items())[:_LISTED]]
    rest = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {rest} other operators" if rest else "")


def _starts(calls: Iterable[CallSeen]) -> str:
    starts = {call.operator: call.starts for call in calls if call.starts}
    if not starts:
        return "no pattern starts at them"
    kinds = dict.fromkeys(kind for found in starts.values() for kind in found)
    return (
        f"patterns of {', '.join(kinds)} start at {', '.join(starts)}, and what they found is another thing"
    )
