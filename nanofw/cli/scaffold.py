"""`nanofw plugins new KIND NAME`: a package for a plugin that works, to be changed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nanofw.cli import ExitCode
from nanofw.cli.stdout import stdout
from nanofw.errors import ConfigError, NanofwError, PluginError


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to those of `nanofw plugins`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "new", help="write a package for a new plugin", description=__doc__
    )
    parser.add_argument("kind", metavar="KIND", help="scheduler, sampler, ...")
    parser.add_argument("name", metavar="NAME", help="what a configuration calls the plugin")
    parser.add_argument(
        "--package", metavar="NAME", help="of the package (default: nanofw- and the plugin's name)"
    )
    parser.add_argument(
        "--host", action="store_true",
        help="a logits processor that masks tokens on the host, as a grammar does",
    )  # fmt: skip
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="FOLDER", help="where (default: here)"
    )
    return parser


def main(options: argparse.Namespace) -> int:
    """Entry of the command."""
    from nanofw.scaffold import names_of, write_package

    try:
        names = names_of(options.kind, options.name, options.package, is_host=options.host)
        root = write_package(names, options.into)
    except PluginError:
        raise
    except NanofwError as error:  # what was typed
        raise ConfigError(str(error), source="command line") from None
    print(
        f"{root} has a {names.kind} {names.name!r} that works. Next:\n"
        f"  cd {root}\n"
        f"  pip install -e '.[test]'\n"
        f"  pytest\n"
        f"  nanofw plugins test {names.kind} {names.name}\n"
        f"  nanofw run run.yaml",
        file=stdout(),
    )
    return ExitCode.OK
