"""`model.weights: random`: no files, and every output says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanofw.assembly import assemble, select
from nanofw.cli.main import main
from nanofw.config.load import load_config
from nanofw.errors import ModelError
from tests.models.family_folders import make_config
from tests.models.test_any_decoder import words as through_transformers
from tests.models.test_any_decoder import write

SETTINGS = ["model.weights=random", "engine.device=cpu", "engine.max_model_len=64"]


@pytest.mark.parametrize("family", ["Gemma2", "Starcoder2", "Phi3"])
def test_a_folder_without_weights_runs_and_says_so(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(make_config(family, 3))
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    file = tmp_path / "results.jsonl"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt_token_ids": [5, 6, 7], "max_tokens": 3}\n', encoding="utf-8")
    code = main(["run", f"model.path={tmp_path}", *SETTINGS, f"output.file={file}",
                 f"input.file={prompts}"])  # fmt: skip
    assert code == 0, capsys.readouterr().err
    (line,) = file.read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    assert record["weights"] == "random"
    facts = select(
        load_config("qwen3-demo", [f"model.path={tmp_path}", *SETTINGS])
    ).explanation.facts
    assert facts["model"] == f"{tmp_path} (random weights)"


def test_a_model_that_cannot_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "mixtral")
    with pytest.raises(ModelError, match="TransformersDecoder cannot be run with model.weights"):
        assemble(through_transformers(tmp_path, "model.weights=random"))
