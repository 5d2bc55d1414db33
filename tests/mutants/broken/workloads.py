"""Workloads that are wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from nanofw.plugins import Plugin, SamplingParams, hookimpl
from nanofw.workloads.closed_loop import ClosedLoop, ClosedLoopOptions
from nanofw.workloads.lengths import Fixed, Uniform
from nanofw.workloads.mix import PrefixGroups
from nanofw.workloads.open_loop import OpenLoop, PoissonOptions
from tests.mutants.collection import Collection

sample = Collection("workload/1")


@hookimpl
def workload() -> list[Plugin]:
    return sample.plugins()


class Few(PoissonOptions):
    num_requests: int = 24
    rate: float = 10.0
    prompt: Uniform = Uniform(distribution="uniform", low=2, high=12)
    output: Uniform = Uniform(distribution="uniform", low=1, high=8)


class WithPrefixes(Few):
    prefix: PrefixGroups = PrefixGroups(groups=2, length=Fixed(tokens=8))


class WithDeadlines(Few):
    deadline_s: float = 0.5


class Users(ClosedLoopOptions):
    num_requests: int = 24
    concurrency: int = 4
    think_s: float = 0.1
    prompt: Uniform = Uniform(distribution="uniform", low=2, high=12)
    output: Uniform = Uniform(distribution="uniform", low=1, high=8)


class Plain(OpenLoop):
    """Independent arrivals, each request changed by `changed`."""

    def initial(self):
        for i, request in enumerate(super().initial()):
            yield self.changed(i, request)

    def changed(self, i, request):
        return request

    def sampled(self, request, **changes):
        return replace(request, sampling=replace(request.sampling, **changes))


@sample(Few)
class ArrivalsFall(Plain):
    """The last request comes first."""

    def initial(self):
        return reversed(list(super().initial()))


@sample(Few)
class OneIsMissing(Plain):
    """There is one request less than it says, for which a run waits."""

    def initial(self):
        return iter(list(super().initial())[1:])


@sample(Few)
class NamedTwice(Plain):
    """Two requests each have the same id."""

    def changed(self, i, request):
        return replace(request, id=str(i // 2))


@sample(Few)
class OutsideTheVocabulary(Plain):
    """Some prompts begin with the vocabulary's size, which is not a token."""

    def changed(self, i, request):
        tokens = np.array(request.prompt_token_ids)
        tokens[0] = self._mix._config.vocab_size
        return replace(request, prompt_token_ids=tokens) if i % 3 == 0 else request


@sample(Few)
class NoRoomForTheOutput(Plain):
    """The output is as long as the model, and does not fit behind the prompt."""

    def changed(self, i, request):
        return self.sampled(request, max_tokens=self._mix._config.max_model_len)


@sample(Few)
class PromptsNotCut(Plain):
    """Some prompts are longer than the model."""

    def changed(self, i, request):
        tokens = np.ones(self._mix._config.max_model_len + 1, np.int32)
        return replace(request, prompt_token_ids=tokens) if i == 5 else request


@sample(Few)
class EmptyPrompts(Plain):
    """Some prompts are empty."""

    def changed(self, i, request):
        return replace(request, prompt_token_ids=request.prompt_token_ids[: i % 4])


@sample(Few)
class SeedIgnored(Plain):
    """Every seed gives the same requests: repeated runs are one."""

    def __init__(self, options, config):
        super().__init__(options, replace(config, seed=0))


@sample(Few)
class GlobalLengths(Plain):
    """Lengths come from numpy's generator, and differ between the arms of a comparison."""

    def changed(self, i, request):
        return self.sampled(request, max_tokens=int(np.random.randint(1, 9)))


@sample(Few)
class HashedPrompts(Plain):
    """Prompts follow from the hash of a text, and differ between processes."""

    def changed(self, i, request):
        token = hash(request.id) % self._mix._config.vocab_size
        tokens = np.array([token, *request.prompt_token_ids[1:]], np.int32)
        return replace(request, prompt_token_ids=tokens)


@sample(Few)
class StartIgnored(Plain):
    """Arrivals are counted from 0, not from where the engine's clock stands."""

    def __init__(self, options, config):
        super().__init__(options, replace(config, start=0.0))


@sample(Few)
class ScaleIgnored(Plain):
    """Requests come at the same times, whatever the scale of time is."""

    def __init__(self, options, config):
        super().__init__(options, replace(config, time_scale=1.0))


@sample(Few)
class SamplingIgnored(Plain):
    """The temperature of the configuration is not that of the requests."""

    def changed(self, i, request):
        own = request.sampling
        sampling = SamplingParams(max_tokens=own.max_tokens, seed=own.seed, ignore_eos=True)
        return replace(request, sampling=sampling)


@sample(Few)
class SeedsMissing(Plain):
    """Requests have no seeds, so that their tokens depend on the engine's and on their order."""

    def changed(self, i, request):
        return self.sampled(request, seed=None)


@sample(Few)
class SeedsAlike(Plain):
    """All requests have the same seed."""

    def changed(self, i, request):
        return self.sampled(request, seed=7)


@sample(Few)
class EndsAtTheEnd(Plain):
    """An end token ends a request, so that outputs are shorter than the lengths asked for."""

    def changed(self, i, request):
        return self.sampled(request, ignore_eos=False)


@sample(Few)
class RateByTheMinute(Plain):
    """The rate is that of a minute, and a search for the largest rate goes astray."""

    @property
    def rate(self):
        return 60 * super().rate


@sample(Few)
class IdsOfTheClass(Plain):
    """Ids go on where the workload of the arm before ended, and the arms cannot be paired."""

    count: ClassVar[int] = 0

    def changed(self, i, request):
        type(self).count += 1
        return replace(request, id=str(self.count))


@sample(WithPrefixes)
class HiddenPrefixes(Plain):
    """It says that no prompts begin alike, and they do."""

    def __init__(self, options, config):
        super().__init__(options, config)
        self.shares_prefixes = False


@sample(WithDeadlines)
class DeadlinesFromNought(Plain):
    """The time that a request has is taken for its deadline, and most are late when they come."""

    def changed(self, i, request):
        return replace(request, deadline=self._options.deadline_s)


@sample(Users)
class TooManyFollow(ClosedLoop):
    """Users go on to ask when all requests were made."""

    def follow(self, output):
        if self._next < self.num_requests:
            return super().follow(output)
        self._next += 1
        again = self._mix.make(0, f"again-{self._next}", output.finished)
        return (again,) if self._next < self.num_requests + 9 else ()


@sample(Users)
class FollowsBefore(ClosedLoop):
    """A request comes before the answer that it follows."""

    def follow(self, output):
        return tuple(replace(r, arrival=r.arrival - 1.0) for r in super().follow(output))


@sample(Users)
class UsersLeave(ClosedLoop):
    """A user whose answer was long does not come back, and requests that were said are missing."""

    def follow(self, output):
        return super().follow(output) if len(output.token_ids) < 4 else ()


@sample(Users)
class FollowsByTheClock(ClosedLoop):
    """The length of what follows is that of the time of day, not of options and seed."""

    def follow(self, output):
        length = 1 + np.random.randint(8)
        return tuple(
            replace(request, sampling=replace(request.sampling, max_tokens=int(length)))
            for request in super().follow(output)
        )
