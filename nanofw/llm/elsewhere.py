"""Names of other engines and servers, and what stands for them here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nanofw.errors import near, shown

_CHOSEN = "and logits_processors: [{name: structured}]"
STRUCTURED = 'arguments={"structured": {"json_schema": …}} ' + _CHOSEN

ENGINE: Mapping[str, str] = {
    "gpu_memory_utilization": "memory_utilization",
    "enforce_eager": "cuda_graphs=False",
    "block_size": 'kv_allocator={"name": "paged_prefix", "block_size": …}',
    "num_gpu_blocks_override": 'kv_allocator={"name": "paged_prefix", "num_blocks": …}',
    "enable_prefix_caching": 'kv_allocator="paged_prefix" or "paged"',
    "enable_chunked_prefill": 'batching="mixed" or "prefill_first"',
    "max_tokens": 'sampling={"max_tokens": …}',
    "temperature": 'sampling={"temperature": …}',
    "tokenizer": "the tokenizer.json in the model's folder",
    "tokenizer_mode": "the tokenizer.json in the model's folder",
    "skip_tokenizer_init": "nothing: prompts may be token ids anyway",
    "quantization": "nothing: quantized checkpoints are not supported",
    "trust_remote_code": "nothing: code of a checkpoint is never run",
    "enable_lora": "nothing: adapters are not supported; merge them into the weights",
    "max_loras": "nothing: adapters are not supported; merge them into the weights",
    "revision": "the folder of a downloaded revision as the model",
    "tokenizer_revision": "the folder of a downloaded revision as the model",
    "load_format": "nothing: weights are read from safetensors files",
    "download_dir": "the environment variable HF_HOME",
    "speculative_config": "nothing: there is no speculative decoding",
    "num_speculative_tokens": "nothing: there is no speculative decoding",
    "swap_space": "nothing: a preempted request is computed again",
    "cpu_offload_gb": "nothing: weights stay on the device",
    "kv_cache_dtype": "dtype, which weights and KV share",
    "data_parallel_size": "replicas",
    "pipeline_parallel_size": "tensor_parallel_size",
    "distributed_executor_backend": 'executor="torch" or "ray"',
    "scheduling_policy": 'scheduler="fcfs" or "priority"',
    "disable_log_stats": 'logging={"level": "warning"}',
    "hf_overrides": "a folder with a changed config.json as the model",
    "chat_template": "chat_template.jinja in the model's folder",
    "guided_decoding_backend": "logits_processors=[{'name': 'structured'}]",
    "compilation_config": "cuda_graphs=…",
    "max_seq_len_to_capture": "cuda_graphs=…",
    "served_model_name": "nothing: one engine runs one model",
}
"""Keywords of `LLM`."""

REQUEST: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens, which counts the answer alone",
    "do_sample": "temperature, 0 for the most likely token",
    "top_logprobs": "logprobs, the number of likely tokens",
    "echo": "prompt_logprobs, or the result's prompt",
    "best_of": "n",
    "use_beam_search": "nanofw.beam_search",
    "num_beams": "nanofw.beam_search",
    "stream": "LLM.stream, LLM.stream_chat, AsyncLLM.generate, or `nanofw run`, which shows texts",
    "response_format": STRUCTURED,
    "structured_outputs": STRUCTURED,
    "guided_decoding": STRUCTURED,
    "guided_json": STRUCTURED,
    "guided_regex": f'arguments={{"structured": {{"regex": …}}}} {_CHOSEN}',
    "guided_choice": f'arguments={{"structured": {{"choice": […]}}}} {_CHOSEN}',
    "tool_choice": f"tools, or {STRUCTURED}",
    "reasoning_effort": "chat_template_kwargs, if the model's template reads it",
    "documents": 'chat_template_kwargs={"documents": […]}',
    "user": "client",
    "model": "model.path of the configuration: a run has one model",
    "truncate_prompt_tokens": "nothing: a prompt is never cut",
    "allowed_token_ids": "arguments of a logits processor",
    "logits_processors": "logits_processors of the configuration",
    "detokenize": "nothing: texts are always made",
    "priority_class": "priority",
    "lora_request": "nothing: adapters are not supported",
    "use_tqdm": "progress",
    "prompts": "prompt",
    "input_ids": "prompt_token_ids",
    "text": "prompt",
}
"""Keys of a request, and keywords of `generate`, `chat` and `stream`."""

BATCH_KEYS = frozenset({"custom_id", "method", "url", "body"})
"""Of a line of an OpenAI batch."""


def unknown_key(
    name: object, known: Iterable[str], record: Mapping[str, object] | None = None
) -> str:
    """What to say of a key of a request that there is not.

    Args:
        record: the whole request, when it was one.
    """
    if record is not None and "body" in record and BATCH_KEYS & set(record):
        return (
            f"unknown key {shown(name)}: this is a line of an OpenAI batch, which only the input "
            "file of nanofw run may have; give the keys of its body, and custom_id as id"
        )
    if isinstance(name, str) and name in REQUEST:
        return f"unknown key {name!r}; here it is {REQUEST[name]}"
    names = sorted(known)
    hint = near(str(name), names, count=1) or f"; known: {', '.join(names)}"
    return f"unknown key {shown(name)}{hint}"
