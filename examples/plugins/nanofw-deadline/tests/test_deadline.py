from __future__ import annotations

import pytest
from nanofw_deadline.policy import Deadline, DeadlineOptions
from pydantic import ValidationError

from nanofw.plugins import FinishReason, Request, SamplingParams
from nanofw.testing import (
    EngineShape,
    SchedulerChecks,
    Traffic,
    construct,
    load_component,
    serve,
    simulated_engine,
)

STEP = 0.01  # seconds of a simulated step


class TestContract(SchedulerChecks):
    """Every promise of the policy contract, with options that matter."""

    def make(self, config):
        return Deadline(DeadlineOptions(default_slack_s=0.2, amends=2.0), config)


@pytest.mark.nanofw_plugins("scheduler", distribution="nanofw-deadline")
def test_what_is_installed_is_what_is_tested(component):
    assert component.name == "deadline"
    assert type(construct(component)) is Deadline


def request(name, *, client="", deadline=None, arrival=0.0, num_tokens=4):
    return Request(
        id=name,
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(max_tokens=num_tokens, ignore_eos=True),
        client=client,
        deadline=deadline,
        arrival=arrival,
    )


def order(policy, *requests):
    """Ids in the order in which one row serves them."""
    engine = simulated_engine(policy, EngineShape(max_num_seqs=1))
    record = serve(engine, Traffic(requests=requests))
    return sorted(record.outputs, key=lambda name: record.outputs[name].finished)


def test_the_earliest_deadline_is_served_first():
    requests = [request("late", deadline=9.0), request("soon", deadline=1.0), request("none")]
    policy = Deadline(DeadlineOptions(default_slack_s=5.0))
    assert order(policy, *requests) == ["soon", "none", "late"]


def test_deadlines_are_counted():
    policy = Deadline(DeadlineOptions(default_slack_s=6.5 * STEP))
    order(policy, *(request(str(n)) for n in range(4)))
    assert (policy.num_met, policy.num_missed) == (1, 3)


def test_a_client_that_was_served_late_comes_first_later():
    owed = [request("missed", client="a", deadline=0.0, num_tokens=50)]
    later = [
        request("b's", client="b", deadline=5.0, arrival=1.0),
        request("a's", client="a", deadline=5.2, arrival=1.0),
    ]
    for amends, expected in ((0.0, ["missed", "b's", "a's"]), (3.0, ["missed", "a's", "b's"])):
        policy = Deadline(DeadlineOptions(amends=amends))
        assert order(policy, *owed, *later) == expected
        assert policy.lateness("a") > policy.lateness("b") == 0.0


def test_aborted_requests_are_nobodys_lateness():
    policy = Deadline(DeadlineOptions(default_slack_s=0.0))
    engine = simulated_engine(policy)
    record = serve(engine, Traffic(requests=(request("gone", num_tokens=30),), aborts={"gone": 5}))
    assert record.outputs["gone"].finish_reason is FinishReason.ABORT
    assert (policy.num_met, policy.num_missed) == (0, 0)


def test_only_so_many_clients_are_remembered():
    policy = Deadline(DeadlineOptions(default_slack_s=0.0, max_clients=2))
    order(policy, *(request(name, client=name) for name in ("a", "b", "c")))
    assert policy.lateness("a") == 0.0
    assert policy.lateness("b") > 0.0
    assert policy.lateness("c") > 0.0


def test_wrong_options_are_refused():
    with pytest.raises(ValidationError, match="default_slack_s"):
        load_component("scheduler", "deadline", {"default_slack_s": -1})
    with pytest.raises(ValidationError, match="slack"):
        DeadlineOptions.model_validate({"slack": 3})
