"""Sampling through the whole engine, on a small random model: the same tokens however the work
is cut, log probabilities as transformers has them, and failures that stay alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanofw.contracts.outputs import TokenLogprobs
from nanofw.contracts.requests import FinishReason, Request
from nanofw.errors import RequestError
from nanofw.plugins import LogitsProcessor
from nanofw.samplers.logits_processors.manifest import SuppressTokensOptions
from tests.runtime.checkpoints import reference_logits, write_qwen3
from tests.runtime.driver import component
from tests.runtime.torch_engines import (
    Results,
    assert_equal_outside_ties,
    gap_at,
    make_request,
    run,
    torch_engine,
)
from tests.samplers.test_mixes import random_mix

VOCAB = 128
EOS = (2, 5)
SUPPRESS = component(
    "logits_processor",
    "suppress_tokens",
    "nanofw.samplers.logits_processors.suppress_tokens:SuppressTokens",
    options=SuppressTokensOptions(),
)
VARIATIONS: dict[str, dict[str, Any]] = {
    "batched": {},
    "overlap": {"overlap": True},
    "chunked": {"chunk_tokens": 3, "max_num_batched_tokens": 20},
    "chunked_overlap": {"max_num_batched_tokens": 19, "overlap": True},
    "preempted": {"num_blocks": 14},
    "preempted_overlap": {"num_blocks": 14, "overlap": True, "chunk_tokens": 5},
    "prefill_first": {"prefill_first": True, "max_num_seqs": 3},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("random")
    return folder, write_qwen3(folder, eos_token_id=list(EOS))


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length)]


def mixed_requests() -> dict[str, Request]:
    """Random parameters, two with several samples, one asking for every log probability."""
    rng = np.random.default_rng(3)
    requests: dict[str, Request] = {}
    for index in range(14):
        mix = random_mix(rng, VOCAB)
        values = {name: getattr(mix, name) for name in mix.__dataclass_fields__}
        values |= {"max_tokens": 12, "seed": 1000 + index, "n": 3 if index in (4, 9) else 1}
        if index % 3 == 0:
            values |= {"logprobs": index % 5}
        name = f"r{index}"
        requests[name] = make_request(name, prompt(index, 3 + 2 * index), **values)
    return requests


@pytest.fixture(scope="module")
def alone(checkpoint: tuple[Path, torch.nn.Module]) -> Results:
    """Each of the mixed requests with nobody beside it, one after the other."""
    return run(torch_engine(checkpoint[0]), mixed_requests().values(), one_by_one=True)


def test_every_token_is_what_the_plain_reference_draws(alone: Results) -> None:
    requests = mixed_requests()
    num_ties = 0
    for key, output in alone.outputs.items():
        for step, token in enumerate(output.token_ids.tolist()):
            expected, gap = gap_at(alone, requests[key[0]], key, step, EOS)
            num_ties += gap < 1e-5
            assert gap < 1e-5 or token == expected, (key, step)
    assert num_ties <= 5
    assert {output.finish_reason for output in alone.outputs.values()} == {
        FinishReason.STOP,
        FinishReason.LENGTH,
    }


@pytest.mark.parametrize("variation", VARIATIONS)
def test_tokens_are_equal_however_the_work_is_cut(
    checkpoint: tuple[Path, torch.nn.Module], alone: Results, variation: str
) -> None:
    requests = mixed_requests()
    found = run(torch_engine(checkpoint[0], **VARIATIONS[variation]), requests.values())
    assert_equal_outside_ties(alone, found, requests, EOS)
    assert (found.stats["num_preemptions"] > 0) == variation.startswith("preempted")


def test_order_of_the_requests_does_not_matter(
    checkpoint: tuple[Path, torch.nn.Module], alone: Results
) -> None:
    requests = mixed_requests()
    engine = torch_engine(checkpoint[0], chunk_tokens=7, overlap=True)
    assert_equal_outside_ties(alone, run(engine, reversed(requests.values())), requests, EOS)


def test_samples_of_a_request_differ_and_the_first_is_the_request_alone(
    checkpoint: tuple[Path, torch.nn.Module],
) -> None:
    def samples(n: int) -> list[list[int]]:
        request = make_request("a", prompt(1, 9), n=n, seed=5, max_tokens=8, temperature=1.5)
        tokens = run(torch_engine(checkpoint[0]), [request]).tokens()
        return [tokens["a", index] for index in range(n)]

    four = samples(4)
    assert len({tuple(tokens) for tokens in four}) == 4
    assert samples(1) == four[:1]
    assert samples(2) == four[:2]


def test_bad_words_and_min_tokens_hold_in_whole_outputs(
    checkpoint: tuple[Path, torch.nn.Module], alone: Results
) -> None:
    requests = mixed_requests()
    num_words = 0
    for (name, _), output in alone.outputs.items():
        sampling, tokens = requests[name].sampling, output.token_ids.tolist()
        for word in sampling.bad_words:
            num_words += 1
            found = [tokens[i : i + len(word)] for i in range(len(tokens))]
            assert list(word) not in found
        if output.finish_reason is FinishReason.STOP:
            assert len(tokens) > sampling.min_tokens
    assert num_words > 3


# -- log probabilities -------------------------------------------------------------------------


def expected_logprobs(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """float32[t, vocab], of what may follow each token."""
    return reference_logits(model, tokens).log_softmax(-1)


def assert_logprobs(
    found: TokenLogprobs, expected: torch.Tensor, tokens: list[int], num_top: int
) -> None:
    """Of `tokens`, each drawn from a line of float32[t, vocab] `expected`."""
    assert len(found) == len(tokens) == len(expected)
    assert found.top_ids.shape == found.top_logprobs.shape == (len(tokens), num_top)
    own = expected.gather(1, torch.tensor(tokens)[:, None])
    np.testing.assert_allclose(found.token_logprobs, own[:, 0], atol=2e-4)
    near = (expected - own).abs() < 1e-3
    above = ((expected > own) & ~near).sum(-1).numpy() + 1
    assert (found.ranks >= above).all()
    assert (found.ranks <= above + near.sum(-1).numpy() - 1).all()
    best = expected.topk(num_top, dim=-1).values
    np.testing.assert_allclose(found.top_logprobs, best, atol=2e-4)
    own_top = expected.gather(1, torch.from_numpy(found.top_ids).long())
    np.testing.assert_allclose(own_top, best, atol=1e-3)


@pytest.mark.parametrize("variation", VARIATIONS)
def test_logprobs_are_those_of_the_model_itself(
    checkpoint: tuple[Path, torch.nn.Module], variation: str
) -> None:
    """Before temperature, penalties, bans and processors; of the prompt too, over all chunks."""
    folder, model = checkpoint
    asked = [
        {"logprobs": 3, "prompt_logprobs": 2},
        {"logprobs": 0, "temperature": 0.2, "top_k": 3, "min_tokens": 5},
        {"prompt_logprobs": 0, "repetition_penalty": 3.0, "n": 2},
        {},
        {"logprobs": 5, "presence_penalty": 2.0, "bad_words": ((7,),)},
        {"logprobs": 1, "prompt_logprobs": 9, "arguments": {"suppress_tokens": list(range(64))}},
    ]
    requests = {
        f"r{i}": make_request(f"r{i}", prompt(50 + i, 4 + 7 * i), max_tokens=11, seed=i, **fields)
        for i, fields in enumerate(asked)
    }
    options = {**VARIATIONS[variation], "processors": [SUPPRESS]}
    found = run(torch_engine(folder, **options), requests.values())
    assert (found.stats["num_preemptions"] > 0) == variation.startswith("preempted")
    for (name, _), output in found.outputs.items():
        sampling = requests[name].sampling
        tokens = list(requests[name].prompt_token_ids)
        num_prompt = len(tokens)
        tokens += output.token_ids.tolist()
        expected = expected_logprobs(model, tokens)
        assert (output.logprobs is None) == (sampling.logprobs is None)
        asks = sampling.prompt_logprobs is not None and output.sample_index == 0
        assert (output.prompt_logprobs is None) == (not asks)
        if output.logprobs is not None:
            assert_logprobs(
                output.logprobs, expected[num_prompt - 1 : -1], tokens[num_prompt:],
                sampling.logprobs or 0,
            )  # fmt: skip
        if output.prompt_logprobs is not None:
            assert_logprobs(
                output.prompt_logprobs, expected[: num_prompt - 1], tokens[1:num_prompt],
                sampling.prompt_logprobs or 0,
            )  # fmt: skip


@pytest.mark.parametrize("overlap", [False, True])
def test_prompt_logprobs_survive_a_preemption_in_the_middle_of_the_prompt(
    checkpoint: tuple[Path, torch.nn.Module], overlap: bool
) -> None:
    """When the prompt is computed again it is cut elsewhere: fewer rows decode beside it."""
    folder, model = checkpoint
    engine = torch_engine(folder, num_blocks=17, max_num_batched_tokens=7, overlap=overlap)
    early = [
        make_request(f"e{i}", prompt(i, 5 + i), max_tokens=4 + 5 * i, seed=i, ignore_eos=True)
        for i in range(3)
    ]
    tokens = prompt(77, 50)
    late = make_request("late", tokens, max_tokens=2, prompt_logprobs=3, temperature=0)
    found = run(engine, [*early, late])
    output = found.outputs["late", 0]
    assert output.prompt_logprobs is not None
    expected = expected_logprobs(model, tokens)
    assert_logprobs(output.prompt_logprobs, expected[:-1], tokens[1:], 3)
    assert output.num_preemptions > 0
    assert 0 < output.num_recomputed_tokens < len(tokens)


def test_only_what_is_missing_of_a_prompt_is_computed_for_its_logprobs(
    checkpoint: tuple[Path, torch.nn.Module],
) -> None:
    """Siblings share the prompt's blocks; a request that returns with its answer does too."""
    folder, _ = checkpoint
    siblings = make_request("a", prompt(3, 30), max_tokens=3, prompt_logprobs=1, n=3, seed=1)
    found = run(torch_engine(folder), [siblings])
    cached = [found.outputs["a", index].num_cached_tokens for index in range(3)]
    assert cached == [0, 28, 28]
    requests = [
        make_request(f"r{i}", prompt(i, 21), max_tokens=20, prompt_logprobs=0, seed=i,
                     ignore_eos=True)
        for i in range(3)
    ]  # fmt: skip
    found = run(torch_engine(folder, num_blocks=26), requests)
    back = [output for output in found.outputs.values() if output.num_preemptions]
    assert back
    assert any(output.num_recovered_tokens > 0 for output in back)
    for output in found.outputs.values():
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == 20


def test_prompt_logprobs_do_not_need_the_whole_prompts_logits_at_once(
    checkpoint: tuple[Path, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = checkpoint
    engine = torch_engine(folder)
    executor: Any = engine.executor
    runner = executor._runner
    widths: list[int] = []
    original = runner.model.logits

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        widths.append(len(hidden))
        return original(hidden)

    monkeypatch.setattr(runner.model, "logits", logits)
    monkeypatch.setattr("nanofw.kernels.logprobs._ELEMENTS_AT_ONCE", 16 * VOCAB)
    tokens = prompt(9, 90)
    request = make_request("a", tokens, max_tokens=1, prompt_logprobs=1)
    output = run(engine, [request]).outputs["a", 0]
    assert output.prompt_logprobs is not None
    assert_logprobs(output.prompt_logprobs, expected_logprobs(model, tokens)[:-1], tokens[1:], 1)
    assert widths == [16] * 5 + [9, 1]


def test_streamed_tokens_carry_their_logprobs(checkpoint: tuple[Path, torch.nn.Module]) -> None:
    engine = torch_engine(checkpoint[0], overlap=True)
    engine.add_request(
        make_request("a", prompt(2, 6), max_tokens=5, logprobs=2, seed=1, stream=True)
    )
    deltas, output = [], None
    while engine.has_unfinished:
        step = engine.step()
        deltas += step.deltas
        output = step.finished[0] if step.finished else output
    assert output is not None
    assert output.logprobs is not None
    joined = TokenLogprobs.joined([delta.logprobs for delta in deltas])
    np.testing.assert_array_equal(joined.token_logprobs, output.logprobs.token_logprobs)
    np.testing.assert_array_equal(joined.top_ids, output.logprobs.top_ids)


# -- requests that are refused or fail ---------------------------------------------------------


@pytest.mark.parametrize("token", [999_999, -1, "12", 1.5])
def test_B047_a_bias_outside_the_vocabulary_is_refused_alone(
    checkpoint: tuple[Path, torch.nn.Module], token: Any
) -> None:
    engine = torch_engine(checkpoint[0])
    engine.add_request(make_request("good", prompt(0, 5), logit_bias={0: 5.0}, max_tokens=4))
    with pytest.raises(RequestError, match=r"logit_bias.*0 to 127"):
        engine.add_request(make_request("bad", prompt(1, 5), logit_bias={token: 5.0}))
    found = run(engine, [make_request("more", prompt(2, 5), max_tokens=4)])
    assert sorted(found.tokens()) == [("good", 0), ("more", 0)]
    assert all(len(tokens) == 4 for tokens in found.tokens().values())


POISON = 77  # its embedding is made not to be a number


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("processors", [[], [SUPPRESS]])
def test_B048_a_row_that_is_not_finite_ends_its_request_alone(
    checkpoint: tuple[Path, torch.nn.Module],
    overlap: bool,
    value: float,
    processors: list[Any],
) -> None:
    """The pool is so small that later requests get the blocks that the failed one wrote."""
    clean = [[t for t in prompt(seed, 12) if t != POISON] for seed in range(10)]
    requests = [
        make_request(
            f"r{i}", tokens, max_tokens=6, seed=i, logit_bias={POISON: -100.0}, logprobs=1,
            arguments={"suppress_tokens": [POISON]} if processors else {},
        )
        for i, tokens in enumerate(clean)
    ]  # fmt: skip
    bad = make_request(
        "bad", [1, 2, POISON, *prompt(3, 9)], max_tokens=6, prompt_logprobs=0,
        arguments={"suppress_tokens": list(range(VOCAB - 1))} if processors else {},
    )  # fmt: skip

    def results(*asked: Request) -> Results:
        options: dict[str, Any] = {"num_blocks": 14, "processors": processors, "max_num_seqs": 4}
        engine = torch_engine(checkpoint[0], overlap=overlap, **options)
        executor: Any = engine.executor
        model = executor._runner.model
        embedding = next(p for name, p in model.named_parameters() if "embed" in name)
        with torch.inference_mode():
            embedding[POISON] = value
        return run(engine, asked)

    expected = results(*requests).tokens()
    found = results(requests[0], bad, *requests[1:])
    failed = found.outputs.pop(("bad", 0))
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error is not None
    assert failed.error.startswith("numerical")
    assert len(failed.token_ids) == 0
    assert found.stats["num_failed_rows"] == 1
    assert found.tokens() == expected


# -- logits processors -------------------------------------------------------------------------


class Scale(LogitsProcessor):
    """Multiplies; with `Shift`, the order shows. The request's argument says by how much."""

    name = "scale"

    def __init__(self, options: Any, config: Any) -> None:
        super().__init__(options, config)
        self._values: dict[int, float] = {}

    def check(self, arguments: Any) -> None:
        if arguments is not None and not 0 < arguments <= 10:
            raise ValueError(f"{self.name} is {arguments}; it must be above 0 and at most 10")

    def add_row(self, new: Any) -> bool:
        self._values[new.row] = new.arguments.get(self.name)
        return self._values[new.row] is not None

    def remove_row(self, row: int) -> None:
        del self._values[row]

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        for line, row in enumerate(rows.tolist()):
            if self._values[row] is not None:
                logits[line] = self._changed(logits[line], self._values[row])
        return logits

    def _changed(self, line: torch.Tensor, value: float) -> torch.Tensor:
        return line * value


class Shift(Scale):
    """Adds to the logit of token 9."""

    name = "shift"

    def _changed(self, line: torch.Tensor, value: float) -> torch.Tensor:
        line[9] += value
        return line


ORDERED = {
    name: component("logits_processor", name, f"tests.runtime.test_sampling:{name.title()}")
    for name in ("scale", "shift")
}


@pytest.mark.parametrize("order", [["scale", "shift"], ["shift", "scale"]])
def test_processors_act_in_yaml_order_before_the_parameters(
    checkpoint: tuple[Path, torch.nn.Module], order: list[str]
) -> None:
    folder, model = checkpoint
    tokens = prompt(4, 8)
    arguments = {"scale": 3.0, "shift": 2.0}
    requests = [
        make_request("a", tokens, max_tokens=1, arguments=arguments, logit_bias={3: 1.0}, seed=1),
        make_request("b", tokens, max_tokens=1, seed=1),
    ]
    found = run(torch_engine(folder, processors=[ORDERED[name] for name in order]), requests)
    raw = reference_logits(model, tokens)[-1]
    line = raw.clone()
    for name in order:
        line = line * 3.0 if name == "scale" else line + 2.0 * (torch.arange(VOCAB) == 9)
    np.testing.assert_allclose(found.logits["a", 0, 8], line, atol=1e-3)
    np.testing.assert_allclose(found.logits["b", 0, 8], raw, atol=1e-4)


class NoRepeat(LogitsProcessor):
    """Bans the token that the row drew last, from what the device knows."""

    def __init__(self, options: Any, config: Any) -> None:
        super().__init__(options, config)
        self._last = torch.full((config.max_num_seqs,), -1, device=config.device)
        self._is_on = np.zeros(config.max_num_seqs, np.bool_)

    def check(self, arguments: Any) -> None:
        """Takes anything."""

    def add_row(self, new: Any) -> bool:
        outputs = new.token_ids[new.num_prompt_tokens :]
        self._last[new.row] = int(outputs[-1]) if len(outputs) else -1
        self._is_on[new.row] = new.arguments.get("norepeat", False)
        return bool(self._is_on[new.row])

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        last = self._last[torch.from_numpy(rows).long()].unsqueeze(1)
        is_banned = last == torch.arange(logits.shape[1])
        is_banned &= torch.from_numpy(self._is_on[rows]).unsqueeze(1)
        return logits.masked_fill(is_banned, -torch.inf)

    def sampled(self, rows: Any, token_ids: torch.Tensor) -> None:
        self._last[torch.from_numpy(rows).long()] = token_ids.long()


NO_REPEAT = component("logits_processor", "norepeat", "tests.runtime.test_sampling:NoRepeat")


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_processor_hears_of_each_draw_before_the_next(
    checkpoint: tuple[Path, torch.nn.Module], variation: str
) -> None:
    """With a step in flight too, and after a preemption."""
    requests = [
        make_request(
            f"r{i}", prompt(i, 9 + i), max_tokens=14, temperature=0, logit_bias={7: 60.0},
            ignore_eos=True, arguments={"norepeat": i != 1},
        )
        for i in range(5)
    ]  # fmt: skip
    options = {**VARIATIONS[variation], "processors": [NO_REPEAT]}
    found = run(torch_engine(checkpoint[0], **options), requests)
    assert (found.stats["num_preemptions"] > 0) == variation.startswith("preempted")
    for (name, _), output in found.outputs.items():
        tokens = output.token_ids
        assert tokens[::2].tolist() == [7] * 7
        assert (7 in tokens[1::2]) == (name == "r1"), (name, tokens)


def test_wrong_arguments_of_a_processor_are_refused_alone_with_the_range(
    checkpoint: tuple[Path, torch.nn.Module],
) -> None:
    engine = torch_engine(checkpoint[0], processors=list(ORDERED.values()))
    for value in (0, -1, 11):
        request = make_request(f"bad{value}", prompt(0, 5), arguments={"scale": value})
        with pytest.raises(
            RequestError, match=r"logits_processor 'scale': .* above 0 and at most 10"
        ):
            engine.add_request(request)
    good = make_request("good", prompt(0, 5), max_tokens=3, arguments={"scale": 10})
    assert len(run(engine, [good]).tokens()["good", 0]) == 3


def test_every_parameter_works_or_is_refused_by_name(
    checkpoint: tuple[Path, torch.nn.Module],
) -> None:
    """What a request asks for is never accepted and dropped (of B057, the engine's part)."""
    engine = torch_engine(checkpoint[0])
    with pytest.raises(RequestError, match="foo"):
        engine.add_request(make_request("a", [1], arguments={"foo": 1}))
    plain = run(engine, [make_request("a", prompt(6, 6), temperature=0, max_tokens=8)])
    best = plain.tokens()["a", 0]
    for change in (
        {"logit_bias": {best[0]: -100.0}},
        {"bad_words": (tuple(best[:2]),)},
        {"bad_words": ((best[0],),)},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 5.0},
        {"stop_token_ids": (best[0],)},
        {"min_tokens": 8, "stop_token_ids": (best[0],)},
        {"max_tokens": 3},
    ):
        values: dict[str, Any] = {"temperature": 0, "max_tokens": 8, **change}
        request = make_request("a", prompt(6, 6), **values)
        assert run(torch_engine(checkpoint[0]), [request]).tokens()["a", 0] != best, change
    samples = make_request("a", prompt(6, 6), n=2, max_tokens=8, seed=3, temperature=2.0)
    both = run(torch_engine(checkpoint[0]), [samples]).tokens()
    assert both["a", 0] != both["a", 1]
