"""How does text become HTML or SVG that says what the text says? `tag` escapes whatever is not HTML already."""

import html
from collections.abc import Iterable

_EMPTY = ("img", "meta")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(element: str, /, *content: object, **attributes: object) -> Html:
    """Returns an element around its content.

    Args:
        **attributes: those that are None are left out; `class_` is `class`, `aria_label` is `aria-label`.
    """
    given = {key.rstrip("_").replace("_", "-"): html.escape(str(value)) for key, value in attributes.items() if value is not None}
    start = "".join((f"<{element}", *(f' {key}="{value}"' for key, value in given.items()), ">"))
    return Html(start if element in _EMPTY else f"{start}{join(*content)}</{element}>")


def join(*content: object) -> Html:
    return Html("".join(part if isinstance(part, Html) else html.escape(str(part)) for part in content))


def table(head: Iterable[Html], rows: Iterable[Html]) -> Html:
    """Returns a table that scrolls by itself where the page is narrow."""
    return tag("div", tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows)), class_="box", tabindex=0)


def details(summary: str, *content: object) -> Html:
    return tag("details", tag("summary", summary), *content)
