"""What a TARGET on the command line means, resolved to something that can be called.

========================  =============================================================================
``hf:NAME``               a ``transformers`` model of a tiny random configuration (``full``: real dimensions)
``models:NAME``           a model of ``kernelweld.models``, as an engine serves it: paged caches, a flat batch
                          (``full``: a rank's slice of eight at real dimensions)
a folder                  a ``transformers`` causal language model: its ``config.json``, and weights if there
``FILE.pt2``              a program saved by ``torch.export.save``, with its example inputs; or a graph that
                          ``KERNELWELD_DUMP`` wrote, and a folder of those
``MODULE:CALLABLE``       a function that returns ``(model_or_fn, args, kwargs)``
========================  =============================================================================
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.fx import GraphModule

from kernelweld.cli import hf, saved, served
from kernelweld.cli.hf import CacheKind, Call, Phase
from kernelweld.cli.zoo import ZOO
from kernelweld.errors import BadTarget, UnknownName
from kernelweld.integrations.graph_file import Saved

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_FOLDERS = "Give the folder of a transformers model, or one that KERNELWELD_DUMP wrote."
_OF_OTHER_KINDS = ("a folder", "FILE.pt2", "MODULE:CALLABLE")
_RANDOM_LIMIT = 16 * 2**30  # bytes of random weights made without being asked for the meta device


@dataclass(frozen=True)
class Target:
    """A resolved target. ``fn`` is a module or function; ``config`` is set for ``transformers`` models.

    ``graphs`` are set where the target is captured already; then there is nothing to be called with.
    """

    name: str
    fn: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    config: PreTrainedConfig | None = None
    graphs: tuple[GraphModule, ...] = ()
    is_served: bool = False

    def fresh_inputs(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Copies of the arguments for one call: each call writes to its caches."""
        return copy.deepcopy((self.args, dict(self.kwargs)))


def names() -> tuple[str, ...]:
    """The targets that exist by name."""
    return (*(f"hf:{name}" for name in ZOO), *(f"models:{name}" for name in served.NAMES))


def resolve(
    target: str,
    *,
    phase: Phase = "prefill",
    layers: int | None = None,
    full: bool = False,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    cache: CacheKind = "dynamic",
    device: str | None = None,
    rows: int | None = None,
) -> Target:
    """Resolve ``target``.

    ``phase``, ``layers``, ``batch``, ``dtype``, ``cache`` and ``full`` shape ``hf:`` targets and folders; a
    ``.pt2`` file and a callable bring their own inputs. With ``full`` the model has its real dimensions and
    stands on the meta device, without weights, unless ``device`` says otherwise.

    ``rows`` asks for as many rows in every linear layer: a prompt of ``rows`` tokens, or a decode step of
    ``rows`` sequences in place of ``batch``; a function is called with it.

    Raises:
        UnknownName: no such target; with close names.
        BadTarget: the target exists and cannot be used as it is; with what to do.
        MissingDependency: ``transformers`` is not installed.
    """
    if layers is not None and layers < 1:
        raise BadTarget(target, f"{layers} layers were asked for", "Ask for one layer or more.")
    device = device or ("meta" if full else "cpu")
    call = Call(phase, batch, cache) if rows is None else hf.call_of_rows(phase, rows, cache)
    if target.startswith("models:") and target in names():
        return _served(target, layers, call, dtype, device, full, rows)
    if target in names():
        config = hf.zoo_config(target.removeprefix("hf:"), full=full, layers=layers)
        return _random(target, config, call, dtype, device)
    if Path(target).is_dir():
        return _folder(target, layers, call, dtype, device, rows)
    if target.endswith(".pt2"):
        return _exported(target, rows)
    if _CALLABLE.fullmatch(target) and not target.startswith("hf:"):
        return _callable(target, rows)
    if Path(target).is_file() or target.endswith(".py"):
        name = Path(target).stem
        advice = f"Give MODULE:CALLABLE, as in {name}:function, run from the folder that holds the module."
        raise BadTarget(target, "that is a file, and none of torch.export.save", advice)
    if target.startswith("hf:") and "/" in target:
        advice = f"Models are not downloaded: give the folder of one, or one of {', '.join(names())}."
        raise BadTarget(target, "that is a model of a hub, not the name of a target", advice)
    if "/" in target:
        raise BadTarget(target, "there is no such folder", "Give a folder that holds a config.json.")
    raise UnknownName("target", target, (*names(), *_OF_OTHER_KINDS))


def _served(
    target: str,
    layers: int | None,
    call: Call,
    dtype: torch.dtype,
    device: str,
    full: bool,
    rows: int | None,
) -> Target:
    name = target.removeprefix("models:")
    model, args, kwargs = served.build(
        name,
        full=full,
        layers=layers,
        phase=call.phase,
        batch=call.batch,
        dtype=dtype,
        device=device,
        rows=rows,
    )
    return Target(target, model, args, kwargs, is_served=True)


def _folder(
    target: str, layers: int | None, call: Call, dtype: torch.dtype, device: str, rows: int | None
) -> Target:
    folder = Path(target)
    if dumped := sorted(folder.glob("graph_*.pt2")):
        _refuse_rows(target, rows)
        return _graphs(target, (saved.load(target, path) for path in dumped))
    if not (folder / "config.json").is_file():
        raise BadTarget(target, "the folder has no config.json", _FOLDERS)
    config = hf.folder_config(folder, layers=layers)
    if device != "meta" and hf.has_weights(folder):
        model = hf.saved_model(folder, config, dtype=dtype, device=device)
        return Target(target, model, (), hf.model_kwargs(model, config, call), config)
    if device != "meta" and (size := hf.random_bytes(config, dtype=dtype)) > _RANDOM_LIMIT:
        reason = f"it has no weights, and random ones would take {size / 2**30:.0f} GiB"
        raise BadTarget(target, reason, "Use --full to inspect it on the meta device, or --layers to cut it.")
    return _random(target, config, call, dtype, device)


def _random(target: str, config: PreTrainedConfig, call: Call, dtype: torch.dtype, device: str) -> Target:
    model = hf.random_model(config, dtype=dtype, device=device)
    return Target(target, model, (), hf.model_kwargs(model, config, call), config)


def _refuse_rows(target: str, rows: int | None) -> None:
    if rows is not None:
        advice = "Leave --rows out, or write a function of `rows` and use MODULE:CALLABLE."
        raise BadTarget(target, "a saved program has the rows that it was saved with", advice)


def _exported(target: str, rows: int | None) -> Target:
    _refuse_rows(target, rows)
    read = saved.load(target, Path(target))
    if read.graph is not None:
        return _graphs(target, [read])
    program = read.program
    if program.example_inputs is None:
        advice = "Export it again with example inputs, or write a function and use MODULE:CALLABLE."
        raise BadTarget(target, "it was saved without example inputs", advice)
    args, kwargs = program.example_inputs
    return Target(target, program.module(), tuple(args), kwargs)


def _graphs(target: str, files: Iterable[Saved]) -> Target:
    found = [read.graph for read in files]
    graphs = tuple(graph for graph in found if graph is not None)
    if len(graphs) < len(found):
        advice = "Give that file alone, or move it out of the folder."
        raise BadTarget(target, "a file in it is a program, and no graph of KERNELWELD_DUMP", advice)
    return Target(target, graphs[0], (), {}, None, graphs)


def _callable(target: str, rows: int | None) -> Target:
    module_name, _, attribute = target.partition(":")
    with _current_folder_importable():
        try:
            found: object = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module exists; what it imports does not
            advice = "Run from the folder that holds the module, or install its package."
            raise BadTarget(target, f"there is no module {module_name!r}", advice) from error
        for name in attribute.split("."):
            if not hasattr(found, name):
                raise UnknownName(f"attribute of {module_name!r}", attribute, _public(found))
            found = getattr(found, name)
        result = _called(target, found, rows) if callable(found) or rows is not None else found
    return _triple(target, result)


def _called(target: str, found: object, rows: int | None) -> object:
    """What a function gives, for ``rows`` if it is asked for them."""
    if rows is not None and not (callable(found) and "rows" in signature(found).parameters):
        advice = "Give its function an argument `rows`, or leave --rows out."
        raise BadTarget(target, "it takes no number of rows", advice)
    assert callable(found)
    return found() if rows is None else found(rows=rows)


def _triple(target: str, result: object) -> Target:
    match result:
        case (fn, tuple() | list() as args, dict() as kwargs) if callable(fn):
            return Target(target, fn, tuple(args), kwargs)
    advice = "Return (model_or_fn, args, kwargs): something callable, a tuple and a dict."
    raise BadTarget(target, f"it gave {type(result).__name__!r}", advice)


def _public(module: object) -> tuple[str, ...]:
    return tuple(name for name in dir(module) if not name.startswith("_"))


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """A console script does not have the current folder on its path, unlike ``python -m``."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
