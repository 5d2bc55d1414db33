"""The tests of this folder share a cluster."""

from __future__ import annotations

from tests.ray_cluster import cluster

__all__ = ["cluster"]
