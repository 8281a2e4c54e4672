"""Elements of HTML, from text that is escaped unless it is HTML already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

Attribute = str | int | bool | None
_EMPTY = frozenset({"meta", "input", "br"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: Attribute) -> Html:
    """``<name attributes>children</name>``.

    An attribute's name loses a ``_`` at its end, and others become ``-``: ``class_``, ``aria_label``. True is
    an attribute without a value, None and False are none.
    """
    opening = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Html(opening if name in _EMPTY else f"{opening}{joined(children)}</{name}>")


def joined(children: Iterable[str], between: str = "") -> Html:
    return Html(text(between).join(map(text, children)))


def text(child: str) -> Html:
    return child if isinstance(child, Html) else Html(escape(child, quote=False))


def _attribute(name: str, value: Attribute) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
