"""The text: fetched by the package client, checked, cut into chapters, split three ways.

The source is the King James Version as Debian packages it (``bible-kjv-text`` holds the text in a
compressed form, ``bible-kjv`` the small program that prints it). The text itself is out of
copyright in most of the world; README.md in this folder says more.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("bible-kjv", "bible-kjv-text")
WHOLE_TEXT = "gen1:1-rev22:21"
TEXT_SHA256 = "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d"
VERSE = re.compile(r"^(?P<book>\d?[A-Za-z]+)(?P<chapter>\d+):(?P<verse>\d+) (?P<text>.+)$")
WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")

RUN_WORDS = 8  # a run of this many words that also stands elsewhere counts as a repetition
MAX_REPEATED = 0.02  # chapters that repeat more than this share are never held out
HELD_OUT_SHARE = 0.03  # of the chapters, for validation and again for the test


@dataclass(frozen=True)
class Document:
    """One chapter: its verses without their numbers, a line each."""

    name: str
    text: str


@dataclass(frozen=True)
class Split:
    """Training text, text to choose settings by, and text that only the card's figure sees."""

    train: list[Document]
    valid: list[Document]
    test: list[Document]


def load_split(work: Path, seed: int) -> Split:
    """The split of the source text, which is fetched into ``work`` on first use."""
    return split_documents(parse(source_text(work)), seed)


def source_text(work: Path) -> str:
    """The printed text, from ``work`` or from the packages; refuses another text."""
    path = work / "kjv.txt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_print_bible())
    raw = path.read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    if digest != TEXT_SHA256:
        raise SystemExit(f"{path.name} is not the expected text: sha256 {digest}")
    return raw.decode("ascii")


def _print_bible() -> bytes:
    """Run the installed ``bible`` program, or the one of freshly downloaded packages."""
    if shutil.which("bible"):
        return _run(["bible", "-f", WHOLE_TEXT])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True)
        for package in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg", "-x", package.name, "root"], cwd=folder, check=True)
        usr = Path(folder) / "root" / "usr"
        return _run([str(usr / "bin/bible"), "-p", str(usr / "lib"), "-f", WHOLE_TEXT])


def _run(command: list[str]) -> bytes:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return done.stdout


def parse(text: str) -> list[Document]:
    """Chapters in the order of the text."""
    chapters: dict[str, list[str]] = {}
    for line in text.splitlines():
        found = VERSE.match(line)
        if found is None:
            raise SystemExit(f"not a verse: {line[:60]!r}")
        chapters.setdefault(f"{found['book']} {found['chapter']}", []).append(found["text"].strip())
    return [Document(name, "\n".join(verses)) for name, verses in chapters.items()]


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return WORD.findall(text.lower())


def split_documents(documents: list[Document], seed: int) -> Split:
    """Hold out whole chapters, and only such as hardly repeat other chapters.

    Kings and Chronicles, the first three gospels and some psalms share long passages. A held-out
    chapter with a twin in the training text would measure memory.
    """
    eligible = [
        doc.name
        for doc, share in zip(documents, repeated_shares(documents), strict=True)
        if share <= MAX_REPEATED
    ]
    random.Random(seed).shuffle(eligible)
    count = round(HELD_OUT_SHARE * len(documents))
    valid, test = set(eligible[:count]), set(eligible[count : 2 * count])
    return Split(
        train=[doc for doc in documents if doc.name not in valid | test],
        valid=[doc for doc in documents if doc.name in valid],
        test=[doc for doc in documents if doc.name in test],
    )


def repeated_shares(documents: list[Document]) -> list[float]:
    """For each chapter the share of its word runs that another chapter has too."""
    runs = [set(word_runs(words(doc.text), RUN_WORDS)) for doc in documents]
    holders = Counter(run for own in runs for run in own)
    return [sum(holders[run] > 1 for run in own) / max(1, len(own)) for own in runs]


def word_runs(sequence: list[str], length: int) -> list[tuple[str, ...]]:
    """All runs of ``length`` consecutive words."""
    return list(zip(*(sequence[start:] for start in range(length)), strict=False))
