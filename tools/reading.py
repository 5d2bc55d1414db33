"""How much of the package a reader opens: the lists of docs/reading.md, counted and looked at.

    python tools/reading.py [FOLDER] [--step]

Counts the files of the walks and the hops of a request, and names what is not where the page says.
`--step` runs the embedded model on the CPU and counts the files of the package that one steady
decode step runs; without it nothing is imported.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

PAGE = Path("docs") / "reading.md"
STEPS_BEFORE = 8
FILE = re.compile(r"`(nanofw/[\w/]+\.py)`: (.*?)(?=;|\||$|, then)")
NAME = re.compile(r"`(\w+)`")


@dataclass(frozen=True)
class Walk:
    """A section of the page: files in their order, and the names that it says are in them."""

    title: str
    files: list[str]
    names: list[tuple[str, str]]


def walks(text: str) -> list[Walk]:
    """The sections of the page that name files."""
    found: list[Walk] = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        places = [match for line in body.splitlines() for match in FILE.finditer(line)]
        names = [(match[1], name) for match in places for name in NAME.findall(match[2])]
        if places:
            found.append(Walk(title, list(dict.fromkeys(match[1] for match in places)), names))
    return found


def missing(root: Path, walk: Walk) -> list[str]:
    """Files and names of a walk that are not there."""
    gone = [file for file in walk.files if not (root / file).is_file()]
    defined = {file: definitions(root / file) for file in walk.files if file not in gone}
    names = ((file, name) for file, name in walk.names if file in defined)
    return gone + [f"{file} {name}" for file, name in names if name not in defined[file]]


def definitions(path: Path) -> set[str]:
    """Names of the functions, methods and classes of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def traced(run: Callable[[], object], folder: Path) -> tuple[int, int, list[str]]:
    """Calls, functions and files below a folder that a call runs."""
    codes: list[CodeType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{folder}/"):
            codes.append(frame.f_code)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    files = sorted({str(Path(code.co_filename).relative_to(folder)) for code in codes})
    return len(codes), len(set(codes)), files


def trace_step() -> tuple[int, int, list[str]]:
    """The same of a steady decode step of the embedded model on the CPU."""
    import nanofw
    from nanofw.config.load import load_config
    from nanofw.llm.opening import open_session
    from nanofw.llm.prompts import parse_prompt

    loaded = load_config("qwen3-demo", ["engine.device=cpu", "sampling.max_tokens=64"])
    session = open_session(loaded)
    with session.engine:
        session.add_prompt(parse_prompt("Once upon a time", loaded.config.sampling))
        for _ in range(STEPS_BEFORE):
            session.step()
        return traced(session.step, Path(nanofw.__file__).parent)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description="How much of the package a reader opens.")
    own = Path(__file__).resolve().parent.parent
    parser.add_argument("folder", nargs="?", type=Path, default=own, help="a checkout")
    parser.add_argument("--step", action="store_true", help="also trace one decode step")
    arguments = parser.parse_args()
    for walk in walks((arguments.folder / PAGE).read_text(encoding="utf-8")):
        print(f"{walk.title}: {len(walk.files)} files, {len(walk.names)} names")
        for place in missing(arguments.folder, walk):
            print(f"  not there: {place}")
    if arguments.step:
        calls, functions, files = trace_step()
        print(f"A steady decode step: {len(files)} files, {functions} functions, {calls} calls")
        for file in files:
            print(f"  {file}")


if __name__ == "__main__":
    main()
