"""The simulated executor and its cost models, as plugins."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


@hookimpl
def executor() -> Plugin:
    return Plugin(
        "sim",
        "nanofw.sim.executor:SimExecutor",
        api="executor/2",
        options="nanofw.sim.options:SimOptions",
        capabilities={
            "devices": ("*",),
            "overlap": True,
            "estimate": "nanofw.sim.executor:estimate",
            "needs": ("cost_model",),
            "virtual_time": True,
            "replicas": "sim",
        },
        summary="plans answered after a modelled time; tokens by rule, no weights",
    )


@hookimpl
def cost_model() -> list[Plugin]:
    return [
        Plugin(
            "constant",
            "nanofw.sim.constant:ConstantCost",
            api="cost_model/1",
            options="nanofw.sim.constant:ConstantOptions",
            summary="the same time for every step, and a price per token",
        ),
        Plugin(
            "roofline",
            "nanofw.sim.roofline:Roofline",
            api="cost_model/1",
            options="nanofw.sim.roofline:RooflineOptions",
            summary="arithmetic against memory traffic, from the model's shape",
        ),
        Plugin(
            "fitted",
            "nanofw.sim.fitted:FittedCost",
            api="cost_model/1",
            options="nanofw.sim.fitted:FittedOptions",
            summary="as a real run was measured by nanofw calibrate",
        ),
    ]
