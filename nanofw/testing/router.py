"""What every router must keep, on requests that come and go and replicas that die and come back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

import numpy as np

from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.limits import Limits
from nanofw.contracts.outputs import StepOutput
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.router import Router, RouterConfig
from nanofw.contracts.views import RequestView
from nanofw.replicas.ledger import Ledger, RoutedRequest
from nanofw.replicas.routing import RouterGuard
from nanofw.testing.class_state import check_class_state, class_state
from nanofw.testing.hashes import HashedText, other_hashes
from nanofw.testing.memory import reachable_bytes

LIMITS = Limits(
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=256,
    num_blocks=64,
    block_size=4,
)
NUM_REQUESTS = 300
NUM_PREFIXES, PREFIX_LENGTH = 6, 24


class RouterChecks(ABC):
    """Checks of one router; each `test_` method is one. Subclass it under pytest.

        class TestMyRouter(RouterChecks):
            def make(self, config):
                return MyRouter(MyOptions(), config)

    Attributes:
        num_replicas: engines that it routes to, two or more.
        kept_bytes_per_request: what a router may keep of each request that it has seen.
    """

    num_replicas: ClassVar[int] = 4
    kept_bytes_per_request: ClassVar[int] = 24

    @abstractmethod
    def make(self, config: RouterConfig) -> Router:
        """A fresh router."""

    def test_methods_are_those_of_the_contract(self) -> None:
        """No name is misspelt, and each method can be called as the contract says."""
        problems = hook_problems(type(self._fresh()), Router)
        assert not problems, "; ".join(problems)

    def test_a_replica_that_is_ready_is_chosen(self) -> None:
        """Whatever the loads are, and whichever replicas are gone."""
        for seed in range(3):
            self._run(seed)

    def test_the_only_replica_is_chosen(self) -> None:
        """All others are gone, and have been from the start."""
        for number in range(self.num_replicas):
            replicas = self._replicas(self._fresh())
            replicas.ready = {number}
            for index in range(5):
                assert replicas.serve(_request(Random(index), index)) == number

    def test_choices_depend_on_what_it_is_shown_alone(self) -> None:
        """The same requests and loads give the same choices, in another object, and beside a
        second router of the process."""
        before = class_state(type(self._fresh()))
        first = self._run(7)
        beside = self._replicas(self._fresh())
        second = self._run(7, beside)
        different = [number for number in range(len(first)) if first[number] != second[number]]
        assert not different, (
            f"request {different[0]} went to replica {first[different[0]]}, and to "
            f"{second[different[0]]} in a second run that was the same"
        )
        check_class_state(before, type(self._fresh()))

    def test_choices_do_not_depend_on_hashes_of_texts(self) -> None:
        """The same requests give the same choices in every process, whatever `hash` answers."""
        first, *others = (self._run(5, salt=salt) for salt in range(1, 5))
        for other in others:
            different = [number for number in range(len(first)) if first[number] != other[number]]
            assert not different, (
                f"request {different[0]} went to replica {first[different[0]]}, and to "
                f"{other[different[0]]} with other hashes of texts, as another process has them: "
                "hash() and the order of a set are other in each process"
            )

    def test_replicas_may_be_lost_before_anything_was_sent(self) -> None:
        """`on_lost` is called for any replica, at any time, also twice."""
        replicas = self._replicas(self._fresh())
        for number in (*range(self.num_replicas), 0):
            replicas.guard.lost(number)
        replicas.serve(_request(Random(0), 0))

    def test_requests_are_forgotten(self) -> None:
        """What a router keeps does not grow with the number of requests that it has seen."""
        router, random = self._fresh(), Random(3)
        replicas = self._replicas(router)
        sizes = list[int]()
        for index in range(3 * NUM_REQUESTS):
            replicas.change(random)
            replicas.serve(_request(random, index))
            if (index + 1) % NUM_REQUESTS == 0:
                sizes.append(reachable_bytes(router))
        grown, allowed = sizes[-1] - sizes[0], 2 * NUM_REQUESTS * self.kept_bytes_per_request
        assert grown <= allowed, (
            f"after {2 * NUM_REQUESTS} more requests the router keeps {grown} bytes more; "
            f"{allowed} are allowed (kept_bytes_per_request)"
        )

    def _fresh(self) -> Router:
        return self.make(RouterConfig(name="", num_replicas=self.num_replicas, limits=LIMITS))

    def _replicas(self, router: Router) -> _Replicas:
        guard = _StrictGuard(router, "the router", self.num_replicas, LIMITS.block_size)
        ready = set(range(self.num_replicas))
        return _Replicas(guard, Ledger(self.num_replicas), self.num_replicas, ready)

    def _run(self, seed: int, beside: _Replicas | None = None, salt: int = 0) -> list[int]:
        """The choices for random requests; some of them end, and some lose their replica.

        Args:
            salt: texts have other hashes for each.
        """
        random, chosen = Random(seed), list[int]()
        with other_hashes(salt):
            replicas = self._replicas(self._fresh())
            for index in range(NUM_REQUESTS):
                replicas.change(random)
                request = _request(random, index, salt)
                if beside is not None and index % 2:
                    beside.serve(request)
                chosen.append(replicas.serve(request))
        return chosen


class _StrictGuard(RouterGuard):
    """A run goes on when `on_lost` raises, and logs it; the checks do not."""

    def tell(self, method: str, function: Callable[..., object], *arguments: Any) -> None:
        self.call(method, function, *arguments)


@dataclass(slots=True)
class _Replicas:
    """Replicas that compute nothing."""

    guard: RouterGuard
    ledger: Ledger
    count: int
    ready: set[int]
    live: list[RoutedRequest] = field(default_factory=list[RoutedRequest])

    def serve(self, request: Request) -> int:
        """Where a request goes."""
        tokens = len(request.prompt_token_ids)
        most = request.sampling.max_tokens or 0
        view = RequestView(request, arrival=request.arrival or 0.0, max_tokens=most)
        routed = self.ledger.enter(request, view, tokens + most)
        return self._place(routed)

    def _place(self, routed: RoutedRequest) -> int:
        views = [self.guard.view(n, is_ready=n in self.ready) for n in range(self.count)]
        for view in views:
            self.ledger.fill(view)
        number = self.guard.choose(routed.view, views)
        self.ledger.assign(routed, number)
        self.live.append(routed)
        return number

    def change(self, random: Random) -> None:
        """Some requests end; now and then a replica is lost or comes back."""
        for routed in [each for each in self.live if random.random() < 0.1]:
            self.live.remove(routed)
            self.ledger.give_up(routed, "it ended", 0.0)
        number = random.randrange(self.count)
        if number not in self.ready:
            self.ready.add(number)
        elif len(self.ready) > 1 and random.random() < 0.05:
            self.ready.remove(number)
            self._lose(number)

    def _lose(self, number: int) -> None:
        lost: StepOutput = self.ledger.lose(number, "it died", 0.0)
        self.guard.lost(number)
        ended = {end.id for end in lost.finished}
        self.live = [each for each in self.live if each.replica is not None]
        for routed in self.ledger.unassigned():
            if routed.request.id not in ended:
                self._place(routed)


def _request(random: Random, index: int, salt: int = 0) -> Request:
    """One of a few clients, and a prompt that may begin as others do."""
    prefix = [random.randrange(NUM_PREFIXES)] * PREFIX_LENGTH
    own = [random.randrange(100) for _ in range(random.randint(1, 60))]
    return Request(
        id=HashedText(f"r{index}", salt),
        prompt_token_ids=np.array(prefix * random.randint(0, 1) + own, np.int32),
        sampling=SamplingParams(max_tokens=random.randint(1, 100)),
        arrival=float(index),
        client=HashedText(random.choice(["", "ann", "bob", "eve"]), salt),
    )
