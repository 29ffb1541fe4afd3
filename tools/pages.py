"""What `read` shows besides a session's own texts: knowledge pages and worked examples, files under `prompts/`.

A page is a Markdown file whose first line says for which backends it is (`Backends: cuda, triton`) and whose heading is
its summary. Pages are the same on all machines: none advises what some host forbids.
"""

from __future__ import annotations

from pathlib import Path

PROMPTS = Path(__file__).resolve().parent.parent / "prompts"


def pages(backend: str, folder: Path = PROMPTS) -> dict[str, str]:
    """Names and texts of the knowledge pages for a backend, without their first lines."""
    found = {}
    for path in sorted((folder / "knowledge").glob("*.md")):
        first, _, text = path.read_text(encoding="utf-8").partition("\n")
        if backend in first.removeprefix("Backends:").replace(",", " ").split():
            found[path.stem] = text
    return found


def examples(backend: str, problem: int, folder: Path = PROMPTS) -> dict[str, str]:
    """Names and texts of the worked examples for a backend. One that solves the problem at hand would be the answer."""
    found = sorted((folder / "examples" / backend).glob("*.py"))
    own = f"p{problem:02d}_"
    return {path.stem: path.read_text(encoding="utf-8") for path in found if not path.stem.startswith(own)}


def summary(text: str) -> str:
    """A page's heading, or the first line of an example's docstring."""
    return text.lstrip().removeprefix("# ").removeprefix('"""').splitlines()[0].removesuffix('"""')
