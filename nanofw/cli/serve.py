"""`nanofw serve [config.yaml] [key=value …]`: an OpenAI server."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nanofw.cli import ExitCode
from nanofw.cli.arguments import load
from nanofw.cli.run import log_to_stderr
from nanofw.errors import ConfigError

HELP = """\
usage: nanofw serve [CONFIG] [KEY=VALUE ...]

Serves the model to OpenAI clients: /v1/chat/completions, /v1/completions,
/v1/models, /tokenize, /detokenize, /health, /ready, /metrics. CONFIG is a YAML
file or a preset; without one the embedded model is served.

  nanofw serve                                      at http://127.0.0.1:8000
  nanofw serve my.yaml server.port=9000             another port
  nanofw serve my.yaml scheduler.name=fair_share    another policy

Ctrl-C and SIGTERM let open requests end within server.limits.drain_s.
Exit codes: 0 ended when it was asked to, 2 usage or configuration, 3 a plugin,
the model or the engine failed."""
PACKAGES = ("starlette", "uvicorn", "prometheus_client")


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes; returns the exit code.

    Raises:
        NanofwError: the configuration, the model or the engine is at fault.
    """
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP)
        return ExitCode.OK
    loaded = load(arguments)
    try:
        from nanofw.server.process import serve
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        raise ConfigError(f"nanofw serve needs {error.name}: pip install 'nanofw[serve]'") from None
    log_to_stderr()
    serve(loaded, say)
    return ExitCode.OK


def say(line: str) -> None:
    """Tell the user who started the server."""
    print(f"nanofw: {line}", file=sys.stderr, flush=True)
