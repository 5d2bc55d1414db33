from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from nanofw.cli import tables
from nanofw.cli.main import main
from nanofw.cli.tables import readable_bytes
from tests.plugins.packages import manifest

SIMULATED = ["executor.name=sim", "model.path=shape:qwen3-0.6b", "kv_allocator.num_blocks=64"]


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


@pytest.fixture
def run_yaml(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(
        "base: sim\nscheduler: {name: shortest_job_first}\nengine:\n  seed: 5\n", encoding="utf-8"
    )
    return str(path)


def test_show_prints_a_file_that_loads_to_the_same(
    capsys: pytest.CaptureFixture[str], run_yaml: str, tmp_path: Path
) -> None:
    text = output(capsys, "config", "show", run_yaml, "engine.overlap=false")
    again = tmp_path / "again.yaml"
    again.write_text(text, encoding="utf-8")
    assert output(capsys, "config", "show", str(again)) == text
    assert "overlap: false" in text


def test_show_sources(capsys: pytest.CaptureFixture[str], run_yaml: str) -> None:
    text = output(capsys, "config", "show", "--sources", run_yaml, "scheduler.name=fcfs")
    lines = {line.partition(" = ")[0]: line for line in text.splitlines()}
    assert lines["engine.seed"].endswith(f"# {run_yaml}:4")
    assert lines["scheduler.name"].endswith("# command line")
    assert lines["engine.overlap"].endswith("# default")
    assert "preset qwen3-demo" in lines["model.path"]


def test_flags_may_stand_anywhere(capsys: pytest.CaptureFixture[str], run_yaml: str) -> None:
    first = output(capsys, "config", "show", "--json", "--sources", run_yaml, "engine.seed=1")
    last = output(capsys, "config", "show", run_yaml, "engine.seed=1", "--sources", "--json")
    assert first == last
    records = json.loads(first)["values"]
    (seed,) = [record for record in records if record["key"] == "engine.seed"]
    assert (seed["value"], seed["source"]) == (1, "command line")


def test_show_json_is_the_configuration(capsys: pytest.CaptureFixture[str], run_yaml: str) -> None:
    plain = json.loads(output(capsys, "config", "show", run_yaml, "--json"))
    assert plain["engine"]["seed"] == 5


def test_validate_checks_the_options_of_components(
    capsys: pytest.CaptureFixture[str], run_yaml: str
) -> None:
    text = output(capsys, "config", "validate", run_yaml)
    assert text.startswith("valid; executor sim of nanofw")
    assert "scheduler shortest_job_first" in text
    text = output(capsys, "config", "validate", run_yaml, "scheduler.agein=1", code=2)
    assert text.startswith("nanofw: command line: scheduler.agein: no such key; did you mean")
    text = output(capsys, "config", "validate", run_yaml, "scheduler.name=sjf", code=2)
    assert "no scheduler 'sjf'" in text


def test_presets_are_listed_with_their_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "config", "presets")
    assert any(
        line.startswith("qwen3-demo ") and len(line.split()) > 3 for line in text.splitlines()
    )


def test_two_configurations_are_a_usage_error(
    capsys: pytest.CaptureFixture[str], run_yaml: str
) -> None:
    text = output(capsys, "config", "show", run_yaml, "sim", code=2)
    assert "one configuration at most" in text


def test_a_key_that_is_none_is_not_taken_for_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "config", "show", "logits_processors[0].name=x", code=2)
    assert "is not of the form key=value" in text
    assert "a list is replaced as a whole" in text


def test_B096_explain_prints_what_runs_in_order(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plugin = tmp_path / "processors.py"
    plugin.write_text(
        "from nanofw.plugins import Plugin, hookimpl\n"
        "class Host: ...\n"
        "@hookimpl\n"
        "def logits_processor():\n"
        "    claims = {'devices': ('*',), 'overlap': True, 'needs_history': 'host'}\n"
        "    return [Plugin(n, ':Host', api='logits_processor/2', capabilities=claims)"
        " for n in ('alpha', 'beta', 'gamma')]\n",
        encoding="utf-8",
    )
    listed = "logits_processors=[{name: gamma}, {name: alpha}, {name: beta}]"
    arguments = [*SIMULATED, f"plugins.load=[{plugin}]", listed]
    text = output(capsys, "explain", *arguments)
    assert text.index("gamma") < text.index("alpha") < text.index("beta")
    assert "every component claims it" in text
    plain = json.loads(output(capsys, "explain", "--json", *arguments))
    assert [item["name"] for item in plain["choices"]][-3:] == ["gamma", "alpha", "beta"]
    assert plain["facts"]["architecture"] == "Qwen3ForCausalLM"


def test_explain_shows_downgrades_and_dropped_options(
    capsys: pytest.CaptureFixture[str], run_yaml: str
) -> None:
    text = output(
        capsys, "explain", run_yaml, *SIMULATED, "engine.cuda_graphs=true", "scheduler.name=fcfs"
    )
    assert "off (downgrade)" in text
    assert "device cpu has none" in text
    code = main(["explain", run_yaml, *SIMULATED, "engine.cuda_graphs=true", "plugins.strict=true"])
    assert code == 2
    assert "engine.cuda_graphs: device cpu has none" in capsys.readouterr().err


def test_explain_estimates_memory_without_loading_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = json.loads(output(capsys, "explain", "--json", "kv_allocator.num_blocks=100"))
    memory = plain["memory"]
    assert memory["kv_bytes"] == 100 * memory["kv_bytes_per_block"] > 0
    assert memory["num_kv_tokens"] == 100 * plain["facts"]["block_size"]
    assert memory["weight_bytes"] > plain["facts"]["matrix_bytes"]  # norms are weights, too
    text = output(capsys, "explain", "kv_allocator.num_blocks=100000000")
    assert "of 100,000,000 blocks, as configured" in text
    assert "weights" in text
    assert "claims: devices cuda/cpu" in text


def test_explain_shows_what_is_captured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from nanofw.plugins import Plugin, hookimpl\n"
        "@hookimpl\n"
        "def executor():\n"
        f"    claims = {{'devices': ('cpu',), 'needs': (), 'graphs': '{__name__}:graphs'}}\n"
        "    return Plugin('mine', 'nanofw.sim.executor:SimExecutor', api='executor/2',"
        " capabilities=claims)\n",
        encoding="utf-8",
    )
    arguments = [f"plugins.load=[{plugin}]", "executor.name=mine", "model.path=shape:qwen3-0.6b"]
    text = output(capsys, "explain", *arguments)
    assert "CUDA graphs" in text
    assert "64, 128 tokens" in text
    plain = json.loads(output(capsys, "explain", "--json", *arguments))
    assert plain["graphs"] == graphs(None, None)
    assert json.loads(output(capsys, "explain", "--json"))["graphs"] == []  # a CPU has none


def graphs(options: object, config: object) -> list[dict[str, object]]:
    return [{"graphs": "prefill", "count": 2, "sizes": "64, 128 tokens"}]


def test_explain_is_readable_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WIDTH_OF_A_FILE", 80)
    lines = output(capsys, "explain").splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)  # nothing cut
    assert any(line.startswith("attention_backend  sdpa (asked for: auto)") for line in lines)


def test_explain_shows_the_pool_of_a_simulated_run(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json.loads(output(capsys, "explain", "--json", *SIMULATED))
    assert plain["memory"]["num_blocks"] == 64


def test_a_broken_estimate_does_not_hide_what_was_chosen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from nanofw.plugins import Plugin, hookimpl\n"
        "def estimate(options, config): return 1 / 0\n"
        "@hookimpl\n"
        "def executor():\n"
        "    claims = {'devices': ('cpu',), 'needs': (), 'estimate': 'nanofw.sim.gone:estimate'}\n"
        "    return Plugin('mine', 'nanofw.sim.executor:SimExecutor', api='executor/2',"
        " capabilities=claims)\n",
        encoding="utf-8",
    )
    arguments = [f"plugins.load=[{plugin}]", "executor.name=mine", "model.path=shape:qwen3-0.6b"]
    text = output(capsys, "explain", *arguments)
    assert "estimate of executor 'mine'" in text
    assert "failed to import" in text


def test_sizes_are_readable() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 160 << 10: "160 KiB", 5 << 40: "5 TiB"}
    assert {size: readable_bytes(size) for size in sizes} == sizes
    assert readable_bytes(1024**2 - 1) == "1 MiB"


def test_what_is_shown_of_options_has_the_types_of_their_fields(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value of the environment is text only until its field is known."""
    monkeypatch.setenv("WATERMARK", "0.25")
    path = tmp_path / "run.yaml"
    path.write_text(
        "base: sim\nscheduler: {name: fcfs, watermark: '${oc.env:WATERMARK}'}\n", "utf-8"
    )
    text = output(capsys, "config", "show", str(path))
    assert "watermark: 0.25" in text
    path.write_text(text, encoding="utf-8")
    assert output(capsys, "config", "validate", str(path)).startswith("valid")
    assert "watermark: '0.25'" in output(capsys, "config", "show", "sim", "scheduler.name=absent",
                                         "scheduler.watermark='0.25'")  # fmt: skip


def test_the_schema_of_a_configuration_knows_its_local_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = "from nanofw.plugins import Options\nclass Mine(Options):\n    patience: int = 1\n"
    source = manifest("mine", extra=extra, options="Mine")
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    file = tmp_path / "run.yaml"
    file.write_text("plugins: {load: [mine.py]}\nscheduler: {name: mine, patience: 2}\n", "utf-8")
    written = yaml.safe_load(file.read_text(encoding="utf-8"))
    for words, count in (["config", "schema", str(file)], 0), (["config", "schema"], 1):
        assert main(words) == 0
        validator = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out))
        assert len(list(validator.iter_errors(written))) == count


def test_validate_checks_the_options_of_a_named_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["qwen3-demo", "model.name=transformers"]
    text = output(capsys, "config", "validate", *words, "model.temprature=2", code=2)
    assert "temprature cannot be set" in text
    text = output(capsys, "config", "validate", "qwen3-demo", "model.name=nowhere", code=2)
    assert "no model 'nowhere'" in text
