"""What the merge of sibling GEMMs did, and why it left the rest alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class MergedGroup:
    """Sibling linears that now share one packed weight of `rows` × `in_features`.

    `rows` counts the alignment padding between and after the slices, so it may exceed `sum(out_features)`.
    """

    paths: tuple[str, ...]
    out_features: tuple[int, ...]
    in_features: int
    rows: int
    dtype: str
    bias: bool


@dataclass(frozen=True)
class SkippedGroup:
    """Linears that read one input and stay separate. No paths: the reason concerns the whole model."""

    paths: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class MergeReport:
    """Result of a merge, in the order in which the model runs the groups."""

    merged: tuple[MergedGroup, ...] = ()
    skipped: tuple[SkippedGroup, ...] = ()

    @property
    def gemms_saved(self) -> int:
        """GEMM launches that one forward no longer makes once equal calls are shared."""
        return sum(len(group.paths) - 1 for group in self.merged)

    def to_json(self) -> dict[str, object]:
        """Plain lists, strings and numbers, ready for `json.dumps`."""
        return {
            "merged": [_plain(asdict(group)) for group in self.merged],
            "skipped": [_plain(asdict(group)) for group in self.skipped],
            "gemms_saved": self.gemms_saved,
        }


def _plain(fields: dict[str, object]) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
