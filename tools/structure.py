"""How readable the package `nanofw` is as a whole: one table of figures.

    python tools/structure.py [FOLDER] [--list] [--json FILE] [--compare OTHER.json]

FOLDER is a checkout; without it the script measures its own. `--list` shows the places behind each
figure, `--json` writes figures and places, `--compare` puts the figures of such a file before those
of the checkout. The script reads files and imports none of them, so it measures old checkouts, too.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from python_source import (
    Def,
    Module,
    circles,
    dotted,
    identifiers,
    imported,
    longest,
    num_lines,
    num_parameters,
    read,
    split,
)

PACKAGE = "nanofw"
PUBLIC = {PACKAGE, *(f"{PACKAGE}.{name}" for name in ("plugins", "testing", "kernels"))}
PUBLIC |= {f"{PACKAGE}.models.layers"}
READERS = {  # who names modules of the package: where their files are
    "tests": ["tests"],
    "docs": ["docs", "README.md"],
    "examples": ["examples"],
    "benchmarks": ["benchmarks"],
}
SOURCE_MAP = "rooms.md"  # the page that says where things are names private modules on purpose
READ_SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml"}
FILE_LINES, FUNCTION_LINES, PARAMETERS = 400, 40, 5
PLAIN_METHODS = ("add", "finish", "close", "check", "push", "end")

# What a row says, a regex of the other words, and one of the paths where they mean the same thing.
# The words of an identifier are separated by underscores, and an attribute starts with a dot. The
# paths are those of every layout that the package has had.
EVERYWHERE = ""
WORDS = (
    ("e2e, not e2el", r"e2els?", EVERYWHERE),
    ("captured, not recorded", r"record(s|ed|er|ers|ing|ings)?|replayable", r"/runtime/"),
    # `compare` draws charts, `workloads` draw lengths: not what a sampler does.
    ("sample, not draw", r"draw|drawn|draws|drawing", r"^(?!.*/(compare|workloads)/)"),
    # Tensor parallelism has ranks, too: it is at home in the files left out here.
    (
        "key, not rank",
        r"^[._]*(rank|window_rank|outranks|ranks_groups)$",
        r"/(core|contracts|engine|schedulers)/(?!.*(communicator|model_spec))",
    ),
    # Processes of ranks have places, and text has lines.
    (
        "row, not line or place",
        r"lines?|places",
        r"/(runtime|core|contracts|engine)/(?!.*(ray|workers|parallel)/|.*(metrics|memory)\.py)",
    ),
    ("placement group, not room or guest", r"rooms?|guests?", r"/(ray|replicas)/"),
    ("programmatic dependent launch, not chained", r"chained|let_next_start", EVERYWHERE),
    ("dry run, not rehearsal", r"rehears(e|ed|es|al|als|ing)", EVERYWHERE),
    ("gumbel, not race", r"races?", EVERYWHERE),
    ("router, not front", r"fronts?", EVERYWHERE),
    # A benchmark is run in passes, the checks of the kit pass, and a process is passed files.
    ("micro-batch, not pass", r"pass|passes", r"^(?!.*/(bench|cli|testing|workers|parallel)/)"),
    ("num_preemptions, not preemptions", r"^\.?preemptions$", EVERYWHERE),
)
NAMED_MODULE = re.compile(rf"(?<![\w-]){PACKAGE}(?:\.\w+)+")
NAMED_FILE = re.compile(rf"(?<![\w-]){PACKAGE}(?:/\w+)+(?:\.\w+)?")
IGNORE_COMMENT = re.compile(r"\b(pyright|type): *ignore")


@dataclass(frozen=True)
class Figure:
    """A number of the table and the places that it counts."""

    label: str
    value: float
    places: list[str]


def counted(label: str, places: Iterable[str]) -> Figure:
    places = sorted(places)
    return Figure(label, len(places), places)


def summed(label: str, counts: Counter[str]) -> Figure:
    """A figure of what occurs several times at a place, the most frequent first."""
    return Figure(label, counts.total(), frequent(counts))


def frequent(counts: Counter[str]) -> list[str]:
    return [f"{place}: {num}" for place, num in counts.most_common() if num]


def sizes(package: list[Module]) -> Iterator[Figure]:
    statements = [node for module in package for node in module.nodes if isinstance(node, ast.stmt)]
    num_docstrings = sum(len(module.docstrings) for module in package)
    large = [module for module in package if module.num_lines > FILE_LINES]
    yield Figure("files", len(package), [])
    yield Figure("lines", sum(module.num_lines for module in package), [])
    yield Figure("statements without docstrings", len(statements) - num_docstrings, [])
    places = [f"{module.path} {module.num_lines}" for module in large]
    yield counted(f"files above {FILE_LINES} lines", places)


def class_names(package: list[Module]) -> Iterator[Figure]:
    places: dict[str, dict[str, str]] = defaultdict(dict)  # by name, by file
    for module in package:
        for node in module.classes:
            places[node.name][module.path] = f"{module.path}:{node.lineno}"
    several = {name: list(files.values()) for name, files in places.items() if len(files) > 1}
    lines = [f"{name}: {', '.join(files)}" for name, files in several.items()]
    yield counted("class names in more than one file", lines)


def plain_methods(package: list[Module]) -> Iterator[Figure]:
    """Names of methods that say little: how many classes mean something of their own by them."""
    places: dict[str, list[str]] = {name: [] for name in PLAIN_METHODS}
    for module in package:
        for node in module.classes:
            names = {statement.name for statement in node.body if isinstance(statement, Def)}
            for name in names & places.keys():
                places[name].append(module.at(node))
    for name, classes in places.items():
        yield counted(f"classes with a method {name}", classes)


def functions(package: list[Module]) -> Iterator[Figure]:
    all_of_them = [(module, node) for module in package for node in module.functions]
    for kind, jit in (("functions", False), ("jit functions", True)):
        some = [(module, node) for module, node in all_of_them if is_jit(node) is jit]
        for what, limit, size in (
            ("lines", FUNCTION_LINES, num_lines),
            ("parameters", PARAMETERS, num_parameters),
        ):
            large = [module.at(node, size(node)) for module, node in some if size(node) > limit]
            yield counted(f"{kind} above {limit} {what}", large)


def is_jit(node: Def) -> bool:
    """Whether triton compiles the function."""
    items = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
    return any(dotted(item) in ("jit", "triton.jit") for item in items)


def import_circles(package: list[Module]) -> Iterator[Figure]:
    """Circles of files. An import leads to the module that it names, not to the packages above."""
    names = {module.name for module in package}
    for suffix, inside in (("", False), (", imports in functions included", True)):
        graph = {item.name: imported(item, names, inside) - {item.name} for item in package}
        found = circles(graph)
        yield counted(f"import circles{suffix}", (" ".join(sorted(circle)) for circle in found))
        yield Figure(f"files in import circles{suffix}", sum(map(len, found)), [])


def words(package: list[Module]) -> Iterator[Figure]:
    """Hits of the words for what has another name already, in identifiers; elsewhere as totals."""
    by_label = {label: Counter[str]() for label, _, _ in WORDS}
    in_keys, in_docstrings = Counter[str](), Counter[str]()
    for module in package:
        names = Counter(identifiers(module))
        keys = [text for text in module.strings if re.fullmatch(r"[\w.]+", text)]
        prose = re.findall(r"\w+", " ".join(module.docstrings))
        for label, pattern, where in WORDS:
            if re.search(where, module.path):
                for name in hits(pattern, names):
                    by_label[label][f"{module.path} {name.strip('.')}"] += names[name]
                in_keys[module.path] += len(hits(pattern, keys))
                in_docstrings[module.path] += len(hits(pattern, prose))
    for label, counts in by_label.items():
        yield summed(f"words: {label}", counts)
    yield Figure("words: all of these", sum(counts.total() for counts in by_label.values()), [])
    yield summed("words: all in strings of one word", in_keys)
    yield summed("words: all in docstrings", in_docstrings)


def hits(pattern: str, names: Iterable[str]) -> list[str]:
    """The names with words that a pattern describes; an underscore ends a word."""
    compiled = re.compile(rf"(?<![^\W_])(?:{pattern})(?![^\W_])", re.IGNORECASE)
    return [name for name in names if compiled.search(split(name))]


def types(package: list[Module]) -> Iterator[Figure]:
    """What hides types from a reader and from the type checker."""
    anys, casts, lookups, ignores = (Counter[str]() for _ in range(4))
    for module in package:
        uses = [dotted(node) for node in module.nodes if isinstance(node, ast.Name | ast.Attribute)]
        calls = [dotted(node.func) for node in module.nodes if isinstance(node, ast.Call)]
        anys[module.path] = sum(name in ("Any", "typing.Any") for name in uses)
        casts[module.path] = sum(name in ("cast", "typing.cast") for name in calls)
        lookups[module.path] = sum(name in ("getattr", "hasattr") for name in calls)
        found = [IGNORE_COMMENT.search(comment) for comment in module.comments]
        ignores[module.path] = sum(match is not None for match in found)
    lines = max(1, sum(module.num_lines for module in package))
    yield Figure("Any per 1,000 lines", round(1000 * anys.total() / lines, 1), frequent(anys))
    yield summed("calls of cast", casts)
    yield summed("calls of getattr and hasattr", lookups)
    yield summed("comments that make a type checker ignore a line", ignores)


def private_modules(package: list[Module], root: Path) -> Iterator[Figure]:
    """Modules that others import or name although no public package is meant."""
    names = {module.name for module in package}
    private = names - public_modules(package, names)
    for reader, folders in READERS.items():
        pairs = [
            (file.path, name)
            for file in read(root, reader_files(root, folders))
            for name in reached(file, names) & private
        ]
        modules = Counter(name for _, name in pairs)
        label = f"private modules that {reader} reach, in each file"
        yield Figure(f"private modules that {reader} reach", len(modules), frequent(modules))
        yield counted(label, (f"{path} {name}" for path, name in pairs))


def reader_files(root: Path, folders: list[str]) -> list[Path]:
    paths = [path for name in folders for path in (root / name, *(root / name).rglob("*"))]
    files = [path for path in paths if path.suffix in READ_SUFFIXES and path.is_file()]
    return [path for path in files if path.name != SOURCE_MAP]


def public_modules(package: list[Module], names: set[str]) -> set[str]:
    """The public packages and the modules in them to which they send their readers.

    Those are named by the docstring of the package; all are meant when it defines nothing.
    """
    public = PUBLIC & names
    for module in package:
        if module.name in PUBLIC - {PACKAGE}:
            inside = {name for name in names if name.startswith(f"{module.name}.")}
            is_empty = all(isinstance(node, ast.Expr) for node in module.tree.body)
            docstring = ast.get_docstring(module.tree) or ""
            public |= inside if is_empty else inside & mentioned(docstring, names)
    return public


def reached(file: Module, names: set[str]) -> set[str]:
    """The modules that a file of Python or of text imports or names."""
    if not file.path.endswith(".py"):
        return mentioned(file.text, names)
    return imported(file, names, inside=True) | mentioned("\n".join(file.strings), names)


def mentioned(text: str, names: set[str]) -> set[str]:
    """The modules named in a text, as `a.b` with or without an attribute, or as `a/b.py`."""
    modules = {longest(name, names) for name in NAMED_MODULE.findall(text)}
    return names & (modules | {Module(path, "").name for path in NAMED_FILE.findall(text)})


Measure = Callable[[list[Module]], Iterator[Figure]]
MEASURES: list[Measure] = [sizes, class_names, plain_methods, functions]
MEASURES += [import_circles, words, types]


def measure(root: Path) -> list[Figure]:
    """All figures of a checkout."""
    package = read(root, (root / PACKAGE).rglob("*.py"))
    if not package:
        raise SystemExit(f"{root} holds no package {PACKAGE}: name a checkout of its repository")
    figures = [figure for one in MEASURES for figure in one(package)]
    return [*figures, *private_modules(package, root)]


def table(figures: list[Figure], before: dict[str, float] | None = None) -> str:
    """One line for each figure; with figures from before, those, these and the change."""
    now = {figure.label: figure.value for figure in figures}
    if before is None:
        rows = [("figure", "value"), *((label, f"{value:,}") for label, value in now.items())]
    else:
        rows = [("figure", "before", "after", "change")]
        rows += [(label, *beside(before.get(label), now.get(label))) for label in now | before]
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [(row[0].ljust(first), *map(str.rjust, row[1:], others)) for row in rows]
    return "\n".join("  ".join(line) for line in lines)


def beside(before: float | None, after: float | None) -> tuple[str, str, str]:
    """Both numbers and the change; a dash for a figure that one of the scripts did not have."""
    known = ["-" if value is None else f"{value:,}" for value in (before, after)]
    change = "-" if before is None or after is None else f"{round(after - before, 1):+,}"
    return known[0], known[1], change


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="How readable a package is.")
    own = Path(__file__).resolve().parent.parent
    parser.add_argument("folder", nargs="?", type=Path, default=own, help="a checkout")
    parser.add_argument("--list", action="store_true", help="show the places of every figure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and places")
    parser.add_argument("--compare", type=Path, metavar="OTHER.json", help="figures from before")
    return parser.parse_args()


def main() -> None:
    """Measure, print and write what the command line says."""
    arguments = parse_arguments()
    before = None
    if arguments.compare:
        document = json.loads(arguments.compare.read_text(encoding="utf-8"))
        before = {label: figure["value"] for label, figure in document.items()}
    figures = measure(arguments.folder)
    print(table(figures, before))
    for figure in figures if arguments.list else []:
        if figure.places:
            print("", figure.label, *(f"  {place}" for place in figure.places), sep="\n")
    if arguments.json:
        document = {item.label: {"value": item.value, "places": item.places} for item in figures}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
