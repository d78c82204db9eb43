"""SVG as matplotlib writes it, made part of a page: small, without namespaces, with colours that the page sets."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

_LONG_FRACTION = re.compile(r"(-?\d+\.\d{2})\d+")
_STRAIGHT = re.compile(r"[MLz\d\s.\-]+")
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_FONT_FAMILY = re.compile(r"font-family:[^;]*;?|font: ([\d.]+px)[^;]*")


def inline(document: bytes, name: str, alt: str, inks: Mapping[str, str]) -> str:
    """Make a drawing an element of a page.

    Args:
        document: What matplotlib wrote; our own drawing, never input.
        name: Goes before identifiers, so that several drawings can share a page.
        alt: What is to be seen, in words.
        inks: Name to colour; each such colour becomes the CSS variable of that name.
    """
    root = ET.fromstring(document)  # noqa: S314 - our own drawing
    for parent in root.iter():
        for child in [c for c in parent if _plain(c.tag) in {"metadata", "style"}]:
            parent.remove(child)
    used = {found for e in root.iter() for value in e.attrib.values() for found in re.findall(r"#([\w-]+)", value)}
    variables = {colour: f"var(--{ink})" for ink, colour in inks.items()}
    for element in root.iter():
        element.tag = _plain(element.tag)
        attributes = {_plain(key): value for key, value in element.attrib.items()}
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        element.attrib.clear()
        for key, value in attributes.items():
            element.set(key, _value(key, value, name, variables))
        element.text = element.text if (element.text or "").strip() else None
        element.tail = None
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    return ET.tostring(root, encoding="unicode")


def _plain(name: str) -> str:
    return name.rpartition("}")[2]


def _value(key: str, value: str, name: str, variables: Mapping[str, str]) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return value.replace("#", f"#{name}-", 1)
    if key == "clip-path":
        return value.replace("url(#", f"url(#{name}-")
    if key == "d":
        return path(value)
    if key in {"x", "y", "transform"}:
        return _LONG_FRACTION.sub(r"\1", value)
    if key in {"style", "fill", "stroke"}:
        value = _COLOUR.sub(lambda m: variables.get(m[0], m[0]), value)
        return _FONT_FAMILY.sub(lambda m: f"font-size: {m[1]}" if m[1] else "", value)
    return value


def path(value: str) -> str:
    """Return a path of straight lines in relative steps of a tenth, others as they are but for long fractions.

    Rounding is done on absolute coordinates, so errors do not add up.
    """
    if not _STRAIGHT.fullmatch(value):
        return " ".join(_LONG_FRACTION.sub(r"\1", value).split())
    written: list[str] = []
    here = start = (0, 0)
    words = iter(value.split())
    for word in words:
        if word == "z":
            written.append("z")
            here = start
            continue
        x, y = round(float(next(words)) * 10), round(float(next(words)) * 10)
        across, down = x - here[0], y - here[1]
        if word == "M":
            written.append(f"M{_tenths(x)} {_tenths(y)}")
            start = (x, y)
        elif across and down:
            written.append(f"l{_tenths(across)} {_tenths(down)}")
        elif across:
            written.append(f"h{_tenths(across)}")
        elif down:
            written.append(f"v{_tenths(down)}")
        here = (x, y)
    return "".join(written)


def _tenths(value: int) -> str:
    whole, rest = divmod(abs(value), 10)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{rest}" if rest else f"{sign}{whole}"
