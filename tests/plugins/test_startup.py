"""What is installed and not selected is not imported."""

from __future__ import annotations

import json
from pathlib import Path

from tests.plugins.packages import manifest, write_dist_info
from tests.spawn import run_python

CODE = """
import json, sys
from nanofw.cli.main import main
loaded = []
for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
    loaded.append(sorted(name for name in sys.modules if name.startswith("installed_")))
print(json.dumps(loaded))
"""
POLICY = """
from nanofw.plugins import Policy

class Target(Policy):
    def key(self, request, view):
        return request.arrival
"""
CHOSEN = "scheduler.name=installed_7"


def test_of_50_installed_packages_only_the_selected_one_is_imported(tmp_path: Path) -> None:
    for number in range(50):
        name = f"installed_{number}"
        write_dist_info(tmp_path, name, "1.0", {f"scheduler.{name}": name})
        source = manifest(name).replace('":Target"', f'"{name}_policy:Target"')
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        (tmp_path / f"{name}_policy.py").write_text(POLICY, encoding="utf-8")
    steps = [
        (["plugins", "list"], []),
        (["completion", "words", "--", "run", "scheduler.name=in"], []),
        (["config", "validate", "sim"], []),
        (["run", "sim", 'input.prompts=["Once"]'], []),
        (["config", "show", "sim", CHOSEN], ["installed_7"]),
        (["plugins", "show", "scheduler", "installed_7"], ["installed_7"]),
        (["config", "validate", "sim", CHOSEN], ["installed_7", "installed_7_policy"]),
        (["run", "sim", CHOSEN], ["installed_7", "installed_7_policy"]),
    ]
    commands = json.dumps([words for words, _ in steps])
    printed = run_python("-c", CODE, commands, environment={"PYTHONPATH": str(tmp_path)})
    assert json.loads(printed.splitlines()[-1]) == [loaded for _, loaded in steps]
