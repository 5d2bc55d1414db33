"""`nanofw verify MODEL`: logits and tokens against transformers, on your weights."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode
from nanofw.cli.arguments import CONFIG_WORDS, add_config, load
from nanofw.cli.tables import console, print_json, table

if TYPE_CHECKING:
    from nanofw.assembly import Selection
    from nanofw.bench.verify import Comparison

EPILOG = """\
The logits of every token that the engine draws behind several prompts are
compared. In float32 they may differ by 1e-4 of their standard deviation; in a
lower precision by twice what transformers in that precision is off its own
float32. Exit code 1: outside these bounds.
"""


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    options = _parser().parse_intermixed_args(arguments)
    from nanofw.assembly import select
    from nanofw.bench.verify import (
        VerifyOptions,
        check_possible,
        compare,
        make_prompts,
        run_engine,
    )
    from nanofw.errors import PluginLoadError

    if importlib.util.find_spec("transformers") is None:
        raise PluginLoadError("nanofw verify needs transformers: pip install 'nanofw[verify]'")
    model = options.model.removeprefix("model.path=")  # as other commands spell it
    path = f"model.path={json.dumps(model)}"
    selection = select(load([*options.config, path, "logits_processors=[]"]))
    settings = VerifyOptions(
        max_tokens=options.max_tokens,
        seed=options.seed,
        reference_device=options.reference_device,
    )
    longest = check_possible(selection, settings)
    spec = selection.spec
    prompts = [_encoded(spec.path, text) for text in options.prompt] or make_prompts(
        spec.vocab_size, longest, settings.seed
    )
    texts = run_engine(selection, prompts, settings.max_tokens)
    found = compare(texts, spec.path, spec.dtype, selection.device, settings)
    is_within = all(item.is_within for item in found)
    if options.json:
        print_json(_plain(selection, found, is_within))
    else:
        _print(selection, found, is_within)
    return ExitCode.OK if is_within else ExitCode.BAD_RESULT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanofw verify", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub id, or embedded:demo")
    add_config(parser)
    parser.usage = f"{parser.prog} MODEL {CONFIG_WORDS} [OPTIONS]"
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT",
        help="compare on this text (may be given several times); default: random tokens",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=_at_least(1), default=32, help="generated of each prompt"
    )
    parser.add_argument("--seed", type=_at_least(0), default=0, help="of the random prompts")
    parser.add_argument("--reference-device", help="where transformers runs; default: as the run")
    parser.add_argument("--json", action="store_true", help="write JSON")
    return parser


def _at_least(low: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"should be at least {low}, not {value}")
        return value

    return integer


def _encoded(folder: str, text: str) -> list[int]:
    from pathlib import Path

    from nanofw.text.tokenizer import load_tokenizer

    return list(load_tokenizer(Path(folder)).encode(text))


def _plain(selection: Selection, found: Sequence[Comparison], is_within: bool) -> dict[str, object]:
    backend = selection.explanation.choice("attention_backend")
    return {
        "model": selection.spec.path,
        "architecture": selection.spec.architecture,
        "device": selection.device,
        "dtype": selection.spec.dtype,
        "attention_backend": backend.name if backend else None,
        "is_within": is_within,
        "prompts": [asdict(item) | {"is_within": item.is_within} for item in found],
    }


def _print(selection: Selection, found: Sequence[Comparison], is_within: bool) -> None:
    facts = _plain(selection, found, is_within)
    out = console()
    columns = ("prompt tokens", "positions", "largest error", "mean error", "bound",
               "greedy tokens", "")  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for item in found:
        ties = f", {item.num_ties} tied" if item.num_ties else ""
        rows.append((
            str(item.num_prompt_tokens), str(item.num_positions), f"{item.error:.2g}",
            f"{item.mean_error:.2g}", f"{item.bound:.2g}",
            f"{item.num_equal} of {item.num_greedy} equal{ties}",
            "within" if item.is_within else "OUTSIDE",
        ))  # fmt: skip
    out.print(table(f"{facts['architecture']} against transformers in float32", columns, rows))
    out.print(
        f"{facts['model']}: {facts['dtype']} on {facts['device']}, attention by "
        f"{facts['attention_backend']}; errors are shares of the logits' standard deviation"
    )
    for item in found:
        for position, ours, theirs in item.differences[:3]:
            out.print(
                f"prompt of {item.num_prompt_tokens} tokens: output {position} is {ours}, the "
                f"reference's is {theirs}"
            )
    out.print("within bounds" if is_within else "outside bounds: please report this")
