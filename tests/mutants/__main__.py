"""`python -m tests.mutants [KIND ...]`: what the conformance kit finds, and whom it accuses."""

from __future__ import annotations

import sys

from tests.mutants.scoring import KINDS_WITH_SAMPLES, Score, verdicts


def score_of(kind: str) -> Score:
    """Tells of each plugin as soon as it is known."""
    score = Score(kind)
    for folder in ("broken", "odd"):
        for verdict in verdicts(kind, folder):
            score.add(folder, verdict)
            found = " ".join((verdict.found or "nothing found").split())
            print(f"{kind} {folder} {verdict.sample.name}, {verdict.seconds:.1f} s: {found:.200}")
            sys.stdout.flush()
    return score


def main(kinds: list[str]) -> None:
    all_scores = [score_of(kind) for kind in kinds or KINDS_WITH_SAMPLES]
    print()
    for score in all_scores:
        print(score.text)
        for verdict in score.survivors:
            print(f"  survived: {verdict.sample.name}: {verdict.sample.sentence}")
        for verdict in score.accused:
            print(f"  accused: {verdict.sample.name}: {verdict.found}")
    if len(all_scores) > 1:
        print(Score.sum(all_scores).text)


if __name__ == "__main__":
    main(sys.argv[1:])
