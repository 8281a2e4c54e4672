"""The launches of a served layer's attention: from its input norm to its output projection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile, takewhile

from kernelweld.cli.layers import Block
from kernelweld.cli.reporting import Ran

#: The modules of a layer behind its attention.
_BEHIND = ("post_attention_layernorm", "mlp")


@dataclass(frozen=True)
class AttentionPath:
    """The attention of the last layer: each operator a launch (``unfused``), as Inductor alone would launch
    it (``before``), and with welds (``after``).
    """

    layer: str
    unfused: tuple[Block, ...]
    before: tuple[Block, ...]
    after: tuple[Block, ...]

    def to_json(self) -> dict[str, object]:
        """Counts, and every launch with its kernel, module and source line."""
        rows = {"unfused": self.unfused, "before": self.before, "after": self.after}
        return {
            "layer": self.layer,
            "launches": {name: len(row) for name, row in rows.items()},
            **{name: [_described(block) for block in row] for name, row in rows.items()},
        }


def attention_path(ran: Ran) -> AttentionPath | None:
    """The attention path of the last layer that has one."""
    unfused = {layer.name: layer for layer in ran.unfused}
    found = [layer for layer in ran.layers if layer.number is not None and layer.name in unfused]
    if not found:
        return None
    layer = found[-1]
    return AttentionPath(
        layer.name,
        tuple(_path(unfused[layer.name].before)),
        tuple(_path(layer.before)),
        tuple(_path(layer.after)),
    )


def _path(row: Iterable[Block]) -> Iterator[Block]:
    """The launches from the input norm up to the first that is of what stands behind the attention. The layer
    before may add its output to the residual stream by its last product, in whose launch no module is alone.
    """
    own = dropwhile(lambda block: not block.module, row)
    return takewhile(lambda block: not block.module.startswith(_BEHIND), own)


def _described(block: Block) -> dict[str, object]:
    return {"kernel": block.name, "module": block.module, "source": block.source}

