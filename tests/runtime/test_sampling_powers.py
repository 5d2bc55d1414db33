"""What version 2 of the contracts of samplers and logits processors made possible, through whole
engines: the same tokens however the work is cut."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from nanofw import LLM
from nanofw.cli.main import main
from nanofw.contracts.requests import Request
from nanofw.errors import RequestError
from nanofw.kernels import (
    FIRST_PLUGIN_STREAM,
    STREAMS,
    base_key,
    position_keys,
    random_bits,
    to_device,
    uniform,
)
from nanofw.plugins import LogitsProcessor, Options, Plugin, SampledTokens, Sampler, hookimpl
from nanofw.samplers import LogitEdits
from tests.runtime.driver import component
from tests.runtime.test_sampling import VARIATIONS, checkpoint, prompt
from tests.runtime.torch_engines import make_request, run, torch_engine

assert checkpoint  # a fixture
CPU = torch.device("cpu")


class Toss(LogitsProcessor):
    """A toss by the request's seed decides whether a row's best token stays. It sees temperature,
    penalties and biases."""

    stage = "scaled"
    seen: ClassVar[Counter[float]] = Counter()

    def __init__(self, options: Any, config: Any) -> None:
        super().__init__(options, config)
        self._keys = np.zeros((config.max_num_seqs, 2), np.int32)
        self._is_on = np.zeros(config.max_num_seqs, np.bool_)

    def check(self, arguments: Any) -> None:
        if arguments not in (None, True):
            raise ValueError("toss is true or left out")

    def add_row(self, new: Any) -> bool:
        self._keys[new.row] = base_key(new.seed, new.sample_index, FIRST_PLUGIN_STREAM)
        self._is_on[new.row] = "toss" in new.arguments
        return bool(self._is_on[new.row])

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        keys = position_keys(to_device(self._keys[rows], CPU), to_device(positions, CPU))
        numbers = uniform(random_bits(keys, torch.zeros(1, dtype=torch.int32)))
        best = logits >= logits.amax(dim=-1, keepdim=True)
        self.seen.update((logits[:, 7] - logits[:, 8]).round(decimals=3).tolist())
        is_on = to_device(self._is_on[rows], CPU).unsqueeze(1)
        return logits.masked_fill(best & (numbers < 0.5) & is_on, -torch.inf)


class Rising(LogitsProcessor):
    """Each token that a request has sampled makes the next odd one likelier: a number of the
    request, which a row alone does not have."""

    ended: ClassVar[list[str]] = []

    def __init__(self, options: Any, config: Any) -> None:
        super().__init__(options, config)
        self._state: dict[str, float] = {}
        self._ids: dict[int, str] = {}

    def add_row(self, new: Any) -> bool:
        self._ids[new.row] = new.request_id
        self._state.setdefault(new.request_id, float(new.seed % 3))
        return True

    def remove_row(self, row: int) -> None:
        assert self._ids.pop(row) in self._state, "finish came before remove_row"

    def finish(self, request_id: str) -> None:
        del self._state[request_id]
        self.ended.append(request_id)

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        raised = [self._state[self._ids[row]] for row in rows.tolist()]
        logits[:, 1::2] += torch.tensor(raised).unsqueeze(1)
        return logits

    def sampled(self, rows: Any, token_ids: torch.Tensor) -> None:
        for row, token in zip(rows.tolist(), token_ids.tolist(), strict=True):
            self._state[self._ids[row]] += 0.3 if token % 2 else -0.7


PROCESSORS = [
    component("logits_processor", name, f"tests.runtime.test_sampling_powers:{name.title()}")
    for name in ("toss", "rising")
]


def requests() -> list[Request]:
    return [
        make_request(
            f"r{i}", prompt(i, 5 + 3 * i), max_tokens=8 + 3 * i, seed=40 + i, ignore_eos=True,
            temperature=0.5 + 0.3 * i, n=1 + i % 2, top_p=0.9 if i % 3 else 1.0,
            presence_penalty=0.4 * i, arguments={"toss": True} if i % 2 else {},
        )
        for i in range(6)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def alone(checkpoint: tuple[Path, torch.nn.Module]) -> dict[Any, list[int]]:
    engine = torch_engine(checkpoint[0], processors=PROCESSORS)
    return run(engine, requests(), one_by_one=True).tokens()


@pytest.mark.parametrize("variation", VARIATIONS)
def test_random_processors_and_state_of_requests_give_equal_tokens_however_work_is_cut(
    checkpoint: tuple[Path, torch.nn.Module], alone: dict[Any, list[int]], variation: str
) -> None:
    Rising.ended.clear()
    engine = torch_engine(checkpoint[0], processors=PROCESSORS, **VARIATIONS[variation])
    found = run(engine, requests())
    assert (found.stats["num_preemptions"] > 0) == variation.startswith("preempted")
    assert found.tokens() == alone
    told = Counter(Rising.ended)
    assert set(told.values()) == {1}, "a request ends once"
    assert len(told) > 4  # the last ones are told with the next plan, which does not come here


def test_an_id_that_comes_again_finds_nothing(checkpoint: tuple[Path, torch.nn.Module]) -> None:
    """With a step in flight too, whose surplus row is removed before the request is told to end."""
    engine = torch_engine(checkpoint[0], processors=PROCESSORS, overlap=True)
    tokens: list[list[int]] = []
    for _ in range(3):
        engine.add_request(make_request("a", prompt(3, 9), max_tokens=8, seed=5, ignore_eos=True))
        while engine.has_unfinished:
            tokens += [out.token_ids.tolist() for out in engine.step().finished]
    engine.close()
    assert tokens == tokens[:1] * 3


def test_the_stage_scaled_comes_after_biases_penalties_and_the_temperature(
    checkpoint: tuple[Path, torch.nn.Module],
) -> None:
    def difference(**sampling: Any) -> float:
        """Between the logits of two tokens, as the processor sees them."""
        Toss.seen.clear()
        request = make_request(
            "a", prompt(4, 8), max_tokens=1, arguments={"toss": True}, **sampling
        )
        run(torch_engine(checkpoint[0], processors=PROCESSORS[:1]), [request])
        (seen,) = Toss.seen
        return seen

    plain = difference(temperature=1.0)
    assert difference(temperature=0.5) == pytest.approx(2 * plain, abs=4e-3)
    assert difference(logit_bias={7: 3.0}) == pytest.approx(plain + 3, abs=4e-3)
    biased = difference(logit_bias={7: 3.0}, temperature=0.5)
    assert biased == pytest.approx(2 * (plain + 3), abs=8e-3)


def test_streams_of_plugins_begin_where_ours_end() -> None:
    assert max(STREAMS.values()) < FIRST_PLUGIN_STREAM
    keys = {stream: base_key(7, 0, stream) for stream in range(256)}
    assert len(set(keys.values())) == 256
    for wrong in (-1, 256):
        with pytest.raises(ValueError, match="stream is"):
            base_key(7, 0, wrong)


# -- arguments of a sampler ----------------------------------------------------------------


class FavourOptions(Options):
    bonus: float = 100.0
    """Added to the logit of a request's favourite token."""


class Favour(Sampler):
    """Takes the most likely token, and likes the one that a request names; keeps all edits."""

    def __init__(self, options: FavourOptions, config: Any) -> None:
        super().__init__(options, config)
        self._edits = LogitEdits(config)
        self._favourites: dict[int, int] = {}

    def check(self, sampling: Any, arguments: Any) -> None:
        if arguments is not None and not 0 <= arguments.get("token", -1) < self.config.vocab_size:
            raise ValueError(f"token must be from 0 to {self.config.vocab_size - 1}")

    def add_row(self, new: Any) -> None:
        self._edits.add_row(new)
        self._favourites[new.row] = new.arguments.get(self.config.name, {}).get("token", -1)

    def remove_row(self, row: int) -> None:
        self._edits.remove_row(row)

    def edit(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        return self._edits.apply(logits, rows, positions)

    def sample(
        self, logits: Any, rows: Any, positions: Any, *, scaled: bool = False, sharded: bool = False
    ) -> SampledTokens:
        for line, row in enumerate(rows.tolist()):
            if (token := self._favourites[row]) >= 0:
                logits[line, token] += self.options.bonus
        highest, token_ids = logits.max(dim=-1)
        self._edits.sampled(rows, token_ids.int())
        return SampledTokens(token_ids=token_ids.int(), failed=~highest.isfinite())


@hookimpl
def sampler() -> Plugin:
    claims = {"devices": ("cpu",), "overlap": True}
    return Plugin("favour", ":Favour", api="sampler/2", options=FavourOptions, capabilities=claims)


SETTINGS = {"sampler": "favour", "plugins": {"load": [__file__]}}
WISHES: list[Any] = [{"token": 77}, None, {"token": 91}, {"token": -3}]
"""Arguments of four requests; the last is refused."""


def wished() -> list[dict[str, Any]]:
    return [
        {"prompt": "And", "max_tokens": 3, **({"arguments": {"favour": own}} if own else {})}
        for own in WISHES
    ]


def assert_granted(records: list[dict[str, Any]]) -> None:
    tokens = [record["token_ids"] for record in records[:3]]
    assert tokens[0] == [77] * 3
    assert tokens[2] == [91] * 3
    assert 77 not in tokens[1]
    assert "'favour' of " in records[3]["error"]
    assert ": token must be from 0 to" in records[3]["error"]


def test_arguments_of_a_sampler_come_from_python() -> None:
    with LLM("embedded:demo", **SETTINGS) as llm:
        results = llm.generate(wished())
        assert_granted([result.to_record() for result in results])
        (held,) = llm.generate(
            "And", max_tokens=3, logit_bias={77: -100.0}, arguments={"favour": {"token": 77}}
        )
        (banned,) = llm.generate(
            "And", max_tokens=3, bad_words=[[77]], arguments={"favour": {"token": 77}}
        )
        assert 77 not in held.outputs[0].token_ids
        assert 77 not in banned.outputs[0].token_ids
        (strange,) = llm.generate("And", arguments={"standard": {"token": 77}})
        assert "'standard', which this run does not use" in str(strange.error)


@pytest.mark.parametrize("form", ["yaml", "jsonl"])
def test_arguments_of_a_sampler_come_from_files(tmp_path: Path, form: str) -> None:
    given: dict[str, Any] = {"prompts": wished()}
    if form == "jsonl":
        lines = [json.dumps(record) for record in wished()]
        (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        given = {"file": str(tmp_path / "in.jsonl")}
    output = tmp_path / "out.jsonl"
    values = {"model": {"path": "embedded:demo"}, "sampler": {"name": "favour"}, "input": given,
              "plugins": {"load": [__file__]}, "output": {"file": str(output)}}  # fmt: skip
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(values), encoding="utf-8")
    main(["run", str(file)])
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert_granted(sorted(records, key=lambda record: int(record["id"].rpartition("-")[2])))


def test_a_sampler_that_takes_no_arguments_refuses_them(
    checkpoint: tuple[Path, torch.nn.Module],
) -> None:
    engine = torch_engine(checkpoint[0], names=("watched",))
    with pytest.raises(RequestError, match=r"sampler 'watched'.*: this sampler takes no arguments"):
        engine.add_request(make_request("a", [1, 2], arguments={"watched": 1}))
    engine.close()
