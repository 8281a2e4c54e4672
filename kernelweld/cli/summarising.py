"""A report as text: the launches of each kind of layer, each weld once, and what is not welded."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from kernelweld.cli.compiling import Built
from kernelweld.cli.layers import alike, numbers
from kernelweld.cli.render import plain_table
from kernelweld.cli.reported import Shown, WeldShown


def show(console: Console, shown: Shown) -> None:
    """The parts of the page, in their order."""
    facts = ", ".join(f"{name} {value}" for name, value in shown.facts.items())
    console.print(f"[bold]{escape(shown.target)}[/] {escape(facts)}", soft_wrap=True)
    console.print(f"  launches  {shown.launches.before} → {shown.launches.after} predicted")
    words = ", ".join(f"{welded} of {count} {kind}" for kind, (count, welded) in shown.words.items())
    console.print(f"  in welds  {words or 'no words'}", soft_wrap=True)
    _layers(console, shown)
    if shown.welds:
        _welds(console, shown)
    if shown.misses:
        _misses(console, shown)
    taken = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in shown.seconds.items())
    console.print(f"  passes    {escape(taken)}", soft_wrap=True)


def _layers(console: Console, shown: Shown) -> None:
    table = plain_table("layers", "of", "launches", "saved in each")
    for group in alike(shown.layers).values():
        lists = numbers(group) or {"": group[0].name}
        launches = f"{len(group[0].before)} → {len(group[0].after)}"
        for name, which in lists.items():
            table.add_row(which, escape(name), launches, str(group[0].saved))
    console.print(table)


def _welds(console: Console, shown: Shown) -> None:
    gpus = [one.target for one in shown.welds[0].built]
    table = plain_table("welds", "kernel", "launches", "words", *map(_heading, gpus))
    for weld in shown.welds:
        words = "\n".join(" -> ".join(map(_kind, task)) for task in weld.tasks)
        cells = (f"{weld.count} ×", escape(weld.name), f"{weld.before} → 1", escape(words))
        table.add_row(*cells, *map(_sizes, weld.built))
    console.print(table)
    for line in (line for weld in shown.welds for line in _times(weld)):
        console.print(escape(line), soft_wrap=True)


def _heading(gpu: str) -> str:
    return f"{gpu}: registers, spills, shared"


def _kind(word: str) -> str:
    return word.partition("{")[0]


def _sizes(built: Built) -> str:
    done = built.compiled
    if done is None:
        return "[red]FAILED[/]"
    return f"{done.registers}, {done.stack_bytes} B, {done.shared_bytes} B"


def _times(weld: WeldShown) -> Iterator[str]:
    for one in weld.measured:
        times = ", ".join(f"{name} {us:.2f} µs" for name, us in one.us.items())
        speed = "" if one.copy_fraction is None else f", {one.copy_fraction:.0%} of a copy"
        yield f"  measured  {weld.name} on {one.gpu}: {times}{speed}"


def _misses(console: Console, shown: Shown) -> None:
    table = plain_table("not welded", "of", "first source", "reason")
    for one in shown.misses:
        source = str(one.code[0]) if one.code else "unknown"
        reason = one.miss.reason.removeprefix("not welded: ")
        table.add_row(f"{one.count} ×", *map(escape, (one.miss.kind, source.rpartition("/")[2], reason)))
    console.print(table)
