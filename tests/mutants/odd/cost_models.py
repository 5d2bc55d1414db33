"""Cost models that are right and odd."""

from __future__ import annotations

from nanofw.plugins import Options, Plugin, hookimpl
from tests.mutants.broken.cost_models import Plain
from tests.mutants.collection import Collection

sample = Collection("cost_model/1")


@hookimpl
def cost_model() -> list[Plugin]:
    return sample.plugins()


@sample()
class Free(Plain):
    """No step takes any time."""

    def seconds(self, plan):
        return 0


@sample()
class Stairs(Plain):
    """A step takes as long as one of the next power of two, as padded batches do."""

    def seconds(self, plan):
        return 0.001 * (1 << (plan.total_tokens - 1).bit_length())


@sample()
class FirstIsSlow(Plain):
    """The first step of a run takes longer: what was asked before is the object's own."""

    is_warm = False

    def seconds(self, plan):
        was_warm, self.is_warm = self.is_warm, True
        return super().seconds(plan) + (0.0 if was_warm else 1.0)


@sample()
class BusyHost(Plain):
    """The host takes its time as well, and the device has a little memory."""

    def host_seconds(self, plan):
        return 0.0002 + 0.00001 * len(plan.new)

    def kv_bytes(self):
        return 1 << 24


class JitterOptions(Options):
    share: float = 0.01
    seed: int = 3


@sample(JitterOptions)
class Jitter(Plain):
    """Times vary by one in a hundred, by a rule of the seed and the number of the step."""

    def __init__(self, options, config):
        super().__init__(options, config)
        self.options = options

    def seconds(self, plan):
        place = (plan.step * 2654435761 + self.options.seed) % 1000 / 1000
        return super().seconds(plan) * (1 + self.options.share * place)


@sample()
class BySize(Plain):
    """It reads the model's size, and takes whole numbers for times where they are whole."""

    def seconds(self, plan):
        return plan.total_tokens * (1 + self.config.spec.num_layers)
