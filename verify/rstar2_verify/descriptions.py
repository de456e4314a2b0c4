"""Builds what an answer describes by its parameters: `circle with center (3, -1) and radius 4` is its equation.

`compare` calls it. Pure functions of typed values; standard library only.
"""

from __future__ import annotations

from .lexicon import NEUTRAL
from .shapes import components, vector_components
from .tree import Node, difference, integer

_X, _Y, _TWO = Node("name", text="x"), Node("name", text="y"), integer(2)
_ONE_PARAMETER = {"exponential": "Exp", "poisson": "Poi"}
_STANDARD = {"standard", "normal"}


def described(node: Node, other: Node) -> Node:
    """Return the equation or distribution that parameters describe, next to one; other nodes unchanged."""
    if node.kind == "text" and _STANDARD <= {*node.text.split()} - NEUTRAL <= _STANDARD | {"distribution"}:
        return Node("apply", (integer(0), integer(1)), "N")
    name, value = _parameter(node)
    distribution = next((word for word in _ONE_PARAMETER if word in node.text.split()), "")
    if node.kind == "noted" and distribution and name in ("rate", "mean", "parameter"):
        inverse = distribution == "exponential" and name == "mean"
        return Node("apply", (Node("div", (integer(1), value)) if inverse else value,), _ONE_PARAMETER[distribution])
    separated = node.kind == "list" and len(node.parts) == 2 and {*node.text.split()} <= {",", "and", ";"}
    if not separated or other.kind not in ("relation", "apply"):
        return node
    match _parameter(node.parts[0]), _parameter(node.parts[1]):
        case (("center" | "centre"), center), ("radius", radius):
            return _circle(center, radius) or node
        case ("slope" | "gradient", slope), ("y-intercept" | "intercept", height):
            height = (vector_components(height) or [height])[-1]
            return Node("relation", (_Y, Node("add", (Node("mul", (slope, _X)), height))), "=")
        case ("mean", mean), ("variance", variance) if "normal" in node.parts[0].text:
            return Node("apply", (mean, variance), "N")
        case ("mean", mean), ("deviation", deviation) if "normal" in node.parts[0].text:
            return Node("apply", (mean, Node("pow", (deviation, _TWO))), "N")
    return node


def _parameter(node: Node) -> tuple[str, Node]:
    """Return the last word before a value, and the value: `("radius", 4)` of `radius 4`."""
    if node.kind == "relation" and node.text == "=" and len(node.parts) == 2:
        return node.parts[0].text.rpartition(" ")[2], node.parts[1]
    terms = [word for word in node.text.split() if word not in NEUTRAL] if node.kind == "noted" else []
    return (terms[-1], node.parts[0]) if terms else ("", node)


def _circle(center: Node, radius: Node) -> Node | None:
    """Return the equation of a circle; None if its center is no pair."""
    place = vector_components(components(center)) or []
    if len(place) != 2:
        return None
    squares = tuple(Node("pow", (difference(*pair), _TWO)) for pair in zip((_X, _Y), place, strict=True))
    return Node("relation", (Node("add", squares), Node("pow", (radius, _TWO))), "=")
