"""OLMo 3: OLMo 2 with windows in three layers of four.

Olmo team, "Olmo 3".
"""

from __future__ import annotations

from nanofw.models.olmo2 import Olmo2ForCausalLM


class Olmo3ForCausalLM(Olmo2ForCausalLM):
    """Constructed as `Olmo3ForCausalLM(options, config)`, empty; `load` fills it."""
