"""Run the notebooks, and keep them with what they print: `python -m tools.notebooks`."""

from pathlib import Path
from typing import Any

import nbclient
import nbformat

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def main() -> None:
    """Run all of them; what goes to standard error, and times of cells, are left out."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook: Any = nbformat.read(path, as_version=4)
        where = {"metadata": {"path": str(path.parent)}}
        nbclient.NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources=where, record_timing=False
        ).execute()
        notebook.metadata.pop("language_info", None)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
                for each in cell.outputs:
                    if "data" in each:
                        each.data = {"text/plain": each.data["text/plain"]}
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
