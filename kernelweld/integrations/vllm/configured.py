"""``kernelweld.vllm_pass``: what vLLM's configuration names. Light: made when kernelweld is imported."""

from __future__ import annotations

import sys
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from kernelweld.integrations.vllm.options import Options, from_environment

if TYPE_CHECKING:
    from torch import fx

    from kernelweld.integrations.vllm.welder import Welder

#: Where vLLM keeps the class that a configured pass must be of.
_HOME = "vllm.compilation.passes.inductor_pass"


class VllmPass:
    """A pass for ``{"inductor_passes": {"post_grad_custom_post_pass": "kernelweld.vllm_pass"}}``.

    That is a compilation config. vLLM asks whether it is an ``InductorPass``, copies it, sends it to its
    workers, asks for its ``uuid`` when it looks for compiled artefacts, and calls it with each graph, once
    for each range of tokens. Options are read from ``KERNELWELD_OPTIONS`` in the process where vLLM reads its
    configuration; copies keep them.

    ``import kernelweld`` must not import vLLM, and a pass of a class that does not know vLLM's would be
    wrapped, with a ``uuid`` that knows no options. So ``__class__`` answers with vLLM's class where that is
    loaded, as proxies do; ``type()`` and everything that copies see this one.

    Raises:
        BadOption, UnknownName: ``KERNELWELD_OPTIONS`` cannot be read; when vLLM reads its configuration.
    """

    def __init__(self, options: Options | None = None) -> None:
        if options is not None:
            self.options = options

    @cached_property
    def options(self) -> Options:
        return from_environment()

    @property
    def __class__(self) -> type:
        home = sys.modules.get(_HOME)
        if home is None:
            return VllmPass
        self._welder.announce()
        return home.InductorPass  # type: ignore[no-any-return]

    @__class__.setter
    def __class__(self, value: type) -> None:  # the other half of a property that a class may not change
        raise AttributeError("__class__")

    def __call__(self, graph: fx.Graph) -> None:
        """Welds a graph in place; whatever fails leaves it as it was and logs one line."""
        self._welder(graph)

    def uuid(self) -> str:
        """Changes with any option, source byte, or version that a compiled artefact depends on."""
        return self._welder.uuid()

    def is_applicable_for_range(self, compile_range: object) -> bool:
        """Whether graphs for this range of tokens, which has a ``start`` and an ``end``, are welded."""
        return self._welder.applies(compile_range)

    def __reduce__(self) -> tuple[type, tuple[Options]]:
        return VllmPass, (self.options,)

    def __repr__(self) -> str:
        return f"VllmPass({self.options})"

    @property
    def _welder(self) -> Welder:
        welder: type[Welder] = import_module("kernelweld.integrations.vllm.welder").Welder
        return welder(self.options)


vllm_pass = VllmPass()
