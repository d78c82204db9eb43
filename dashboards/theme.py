"""The colours of pages and pictures: fixed ones, safe for colour-blind eyes (after Okabe and Ito, 2008).

Charts use the names in `INK`. On a page each is a CSS variable: the page chooses the shade for light, dark and print.
"""

INK = {
    "ink": "#1b1f24",
    "muted": "#5b6470",
    "rule": "#d5d9de",
    "paper": "#fdfdfc",
    "blue": "#0072b2",
    "orange": "#b58900",
    "green": "#00795a",
    "red": "#bf3a1e",
    "purple": "#a3507f",
    "sky": "#2a86bd",
    "blue-soft": "#9cc7e2",
    "red-soft": "#e6b3a6",
    "orange-soft": "#dfcd93",
    "green-soft": "#93c9bb",
    "purple-soft": "#d3aec3",
    "heat0": "#dbe9f3",
    "heat1": "#b3d1e6",
    "heat2": "#84b5d5",
    "heat3": "#5397c1",
    "heat4": "#2a78a8",
    "heat5": "#145a87",
    "heat6": "#083d61",
}
"""Name to colour on light pages."""

DARK = {
    "ink": "#e6e8ea",
    "muted": "#9aa4af",
    "rule": "#363d45",
    "paper": "#15181c",
    "blue": "#58b0e8",
    "orange": "#e8c04a",
    "green": "#3cc79c",
    "red": "#ff7d5c",
    "purple": "#e29cc4",
    "sky": "#5fb0df",
    "blue-soft": "#2b5b7d",
    "red-soft": "#7f4233",
    "orange-soft": "#75642a",
    "green-soft": "#256150",
    "purple-soft": "#714d63",
    "heat0": "#16293a",
    "heat1": "#1b3d59",
    "heat2": "#22557d",
    "heat3": "#2f73a6",
    "heat4": "#4f96c9",
    "heat5": "#86bce2",
    "heat6": "#cde6f7",
}
"""The same names on dark pages."""

HEAT = [name for name in INK if name.startswith("heat")]
"""Names of the steps of the sequential scale, least first."""

SERIES = ("blue", "orange", "green", "purple", "sky")
"""Names for lines that stand beside each other."""
