"""Keys, and what is too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanofw.config.schema import ServerSection
from nanofw.contracts.requests import FinishReason
from nanofw.errors import ConfigError
from nanofw.llm.results import Completion, RequestResult
from nanofw.server.door import Door
from nanofw.server.errors import ApiError


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def door(**section: object) -> Door:
    return Door(ServerSection.model_validate(section), Time())


def refused(door: Door, name: str = "", num: int = 1, key: str | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        door.enter(door.identify(key), name, num)
    return caught.value


def test_what_waits_and_runs_is_bounded_for_all_and_for_each() -> None:
    bounded = door(limits={"max_requests": 4, "max_client_requests": 3})
    first = bounded.enter(None, "a", 3)
    assert (refused(bounded, "a").status, refused(bounded, "a").retry_after_s) == (429, 1.0)
    bounded.enter(None, "b", 1)
    assert "this server" in refused(bounded, "c").message
    assert refused(bounded, "c", 5).status == 400
    assert bounded.open_by_client() == {"a": 3, "b": 1}
    first.leave()
    first.leave()
    assert (bounded.num_open, bounded.num_turned_away) == (1, 8)
    bounded.enter(None, "a", 3)


def test_keys_are_whose_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANN_KEY", "secret")
    (tmp_path / "key").write_text(" hush\n", encoding="utf-8")
    clients = [
        {"name": "ann", "key_env": "ANN_KEY", "max_requests": 1},
        {"name": "gate", "key_file": tmp_path / "key", "names_clients": True},
    ]
    keyed = door(clients=clients)
    for wrong in (None, "", "Bearer", "Bearer no", "Basic secret", "secret"):
        with pytest.raises(ApiError, match="Authorization") as caught:
            keyed.identify(wrong)
        assert caught.value.status == 401
        assert "secret" not in caught.value.message
    ann, gate = keyed.identify("Bearer secret"), keyed.identify("bearer hush")
    assert ann is not None
    assert gate is not None
    assert keyed.client_named(ann, None) == keyed.client_named(ann, "ann") == "ann"
    assert keyed.client_named(gate, "bob") == "bob"
    with pytest.raises(ApiError, match="leave client out"):
        keyed.client_named(ann, "bob")
    keyed.enter(ann, "ann", 1)
    assert refused(keyed, "ann", key="Bearer secret").code == "queue_full"
    assert "hush" not in repr(keyed.__dict__)


def test_requests_and_tokens_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", "k")
    rates = {"requests_per_minute": 2, "tokens_per_minute": 60}
    limited = door(clients=[{"name": "a", "key_env": "K", **rates}])
    clock = limited._clock
    assert isinstance(clock, Time)
    owner = limited.identify("Bearer k")
    limited.enter(owner, "a", 1).leave()
    used = Completion(finish_reason=FinishReason.LENGTH, token_ids=tuple(range(80)))
    result = RequestResult(request_id="a", prompt_token_ids=(1,) * 10, outputs=[used])
    limited.enter(owner, "a", 1).leave([result])
    assert refused(limited, key="Bearer k").retry_after_s == pytest.approx(30)
    clock.now = 30.0  # a request more, and 30 tokens are still owed
    late = refused(limited, key="Bearer k")
    assert (late.code, late.retry_after_s) == ("rate_limit_exceeded", pytest.approx(1))
    clock.now = 32.0
    limited.enter(owner, "a", 1)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "a"}, "either key_env or key_file"),
        ({"name": "a", "key_env": "NOT_SET_AT_ALL"}, "NOT_SET_AT_ALL is not set"),
        ({"name": "a", "key_file": Path("/nowhere/key")}, "/nowhere/key cannot be read"),
    ],
)
def test_a_key_that_cannot_be_read_is_an_error(entry: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        door(clients=[entry])
    assert str(caught.value.key).startswith("server.clients[0]")
