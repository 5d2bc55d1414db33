"""Keys of a `config.json` that change nothing in the forward pass of any decoder."""

from __future__ import annotations

_IDENTITY = (
    "architectures model_type transformers_version name_or_path auto_map tokenizer_class "
    "torch_dtype dtype id2label label2id num_labels problem_type finetuning_task "
    "task_specific_params prefix unsloth_version unsloth_fixed quantization_config"
)
_OUTPUTS = (
    "output_hidden_states output_attentions return_dict torchscript use_bfloat16 use_cache "
    "chunk_size_feed_forward is_encoder_decoder is_decoder add_cross_attention pruned_heads "
    "cross_attention_hidden_size tie_encoder_decoder tie_last_hidden_states tf_legacy_loss "
    "attn_implementation cache_implementation use_flash_attn use_flash_attention "
    "max_sequence_length"
)
_TRAINING = (
    "initializer_range attention_dropout attn_dropout hidden_dropout embd_pdrop resid_pdrop "
    "pretraining_tp gradient_checkpointing neftune_noise_alpha output_router_logits "
    "router_aux_loss_coef"
)
_TOKENS = (
    "bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id "
    "forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids"
)
_GENERATION = (
    "do_sample temperature top_k top_p typical_p epsilon_cutoff eta_cutoff min_length max_length "
    "max_new_tokens early_stopping num_beams num_beam_groups diversity_penalty length_penalty "
    "repetition_penalty encoder_repetition_penalty no_repeat_ngram_size output_scores "
    "encoder_no_repeat_ngram_size num_return_sequences return_dict_in_generate "
    "remove_invalid_values exponential_decay_length_penalty assistant_confidence_threshold "
    "assistant_lookbehind num_assistant_tokens num_assistant_tokens_schedule target_lookbehind"
)
HARMLESS = frozenset(" ".join((_IDENTITY, _OUTPUTS, _TRAINING, _TOKENS, _GENERATION)).split())
"""What a file may say without being told that it is ignored."""
