"""Random folders, read by nanofw and by transformers: equal logits, or a listed difference.

    python -m tests.fuzz.checkpoints [--folders 500] [--first 0] [--family Llama]

Each folder is a function of family and seed, both of which stand in every line of the report.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from nanofw.checkpoints.config import read_checkpoint
from nanofw.errors import ModelError
from tests.checkpoints.both import LOGIT_BOUND, distance, load_with_report, logits_of, our_logits
from tests.fuzz.family_keys import FAMILIES
from tests.fuzz.folders import write_folder

DIFFERENCES: dict[str, str] = {
    r"does not say which architecture it is": "transformers goes by model_type alone",
    r"architectures says .* and model_type says": "transformers goes by model_type alone",
    r"lacks .* \(each an integer\)": "only families that nanofw knows have defaults",
    r"(num_hidden_layers|intermediate_size) should be a positive integer, not 0": (
        "transformers computes without layers, or without their feed-forward part"
    ),
    r"tensors? unexpected": "transformers leaves them out with a warning",
    r"tensors? missing": "transformers invents them with a warning",
    r"rope parameter factor should be at least 1": "transformers warns and stretches the angles",
    r"rope_theta should be above 1": "transformers computes angles that grow",
    r"rope type llama3 needs low_freq_factor < high": "transformers warns and divides by 0 or less",
    r"beta_slow <= beta_fast": "transformers warns and turns the ramp round",
    r"rope parameters per layer type are not": "transformers reads such a rope as the default one",
    r"use_bidirectional_attention: tokens that": "transformers lets tokens see later ones",
    r"partial_rotary_factor .* is not supported": "transformers ignores it in a default rope",
    r"hidden_act '(gelu|silu)' is not supported": "the layers compute what the family uses",
    r"_multiplier should be a number above 0": "transformers scales by 0 and by less",
    r"rope type '(yarn|dynamic|longrope)' is not supported": "no model of the family has it",
    r"sliding_window should be a number of tokens": "transformers masks everything",
    r"head_dim should be a positive integer, not 0": "transformers takes Mistral's 0 for null",
    r"head_dim should be even": "transformers takes odd heads of up to 4",
    r"partial_rotary_factor should leave an even number": "transformers rotates one element more",
    r"weights in \S+ are not supported": "transformers takes any type of torch",
    r"layers of type \S+ are not supported": "transformers names layers that these families lack",
}
"""Where nanofw refuses what transformers loads: its message, and what transformers does."""


def compare(folder: Path, family: str, seed: int) -> str:
    """How a folder fares with both: a word of the report, `FAULT: ...` where they disagree."""
    config = write_folder(folder, family, seed)
    theirs = _theirs(folder) if config is not None else None
    try:
        ours = our_logits(folder)
    except ModelError as error:
        return _refused(str(error), theirs is not None)
    except KeyError as error:  # the test's driver has no model of another architecture
        return "foreign" if "OtherForCausalLM" in str(error) else f"FAULT: KeyError {error}"
    except Exception as error:
        return f"FAULT: {type(error).__name__} {error}"
    if theirs is None:
        return "only nanofw loads it"
    logits, eos = theirs
    found = distance(ours, logits)
    if not found <= LOGIT_BOUND:
        return f"FAULT: {found:.3g} deviations apart"
    spec = read_checkpoint(folder)
    lost = {item for item in eos if 0 <= item < spec.vocab_size} - set(spec.eos_token_ids)
    return f"FAULT: end tokens {sorted(lost)} are lost" if lost else "equal"


def run(folders: int, first: int = 0, families: tuple[str, ...] = tuple(FAMILIES)) -> Counter[str]:
    """Compare so many folders of each family; prints each fault with its `config.json`."""
    quiet()
    outcomes: Counter[str] = Counter()
    for family in families:
        for seed in range(first, first + folders):
            with tempfile.TemporaryDirectory() as name:
                outcome = compare(Path(name), family, seed)
                if outcome.startswith("FAULT"):
                    config = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
                    print(f"{family} {seed}: {outcome}\n    {config}", flush=True)
            outcomes[outcome] += 1
    return outcomes


def quiet() -> None:
    """Keep the warnings of both libraries out of the report."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message="Initializing zero-element tensors")
    logging.getLogger("nanofw").setLevel(logging.ERROR)


def _theirs(folder: Path) -> tuple[Any, list[int]] | None:
    """Logits and end tokens; None where transformers loads the folder only in part, or not."""
    try:
        model, report = load_with_report(folder)
        logits = logits_of(model)
    except Exception:  # whatever it is, transformers refuses the folder
        return None
    if report["missing_keys"] or report["mismatched_keys"] or not bool(logits.isfinite().all()):
        return None
    eos = model.generation_config.eos_token_id
    return logits, eos if isinstance(eos, list) else [] if eos is None else [eos]


def _refused(message: str, is_loaded: bool) -> str:
    listed = next((pattern for pattern in DIFFERENCES if re.search(pattern, message)), None)
    if not is_loaded:
        return "both refuse it"
    return f"FAULT: refused: {message}" if listed is None else f"listed: {listed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folders", type=int, default=500, help="of each family")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--family", choices=FAMILIES, action="append")
    given = parser.parse_args()
    outcomes = run(given.folders, given.first, tuple(given.family or FAMILIES))
    for outcome, count in outcomes.most_common():
        print(f"{count:6}  {outcome}")
    return int(any(outcome.startswith("FAULT") for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
