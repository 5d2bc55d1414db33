"""Real tokenizers, trained here on a page of multilingual text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from nanofw.text.tokenizer import FileTokenizer

SENTENCES = [
    "Once upon a time there was a king who had three daughters.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "天地玄黃 宇宙洪荒 日月盈昃 辰宿列張",
    "한국어 키스의 고유조건은 입술끼리 만나야 하고",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "दीवारबंद जयपुर ऐसी दुनिया",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 flags 😀 and naïve café — “quotes” … ½ ℵ₀",
    "def f(x):\n\treturn  x ** 2   # two  spaces\r\n\n\n",
    "  leading blanks, trailing blanks  ",
]
SPECIAL = [
    AddedToken("<unk>", special=True),
    AddedToken("<s>", special=True),
    AddedToken("</s>", special=True),
    AddedToken("<tool>", special=False),
    AddedToken("žluť", special=False),
]
CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL[:3],
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens(SPECIAL[3:])
    return tokenizer


def metaspace_unigram() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, show_progress=False, special_tokens=SPECIAL[:3], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens(SPECIAL[3:])
    return tokenizer


def byte_fallback(decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    """BPE over blanks spelled ▁, characters outside the vocabulary as bytes."""
    vocabulary = {token.content: place for place, token in enumerate(SPECIAL[:3])}
    pieces = BYTE_TOKENS + list("▁abcdefghijklmnopqrstuvwxyzě") + ["▁t", "th", "he", "▁the", "▁▁"]
    for piece in pieces:
        vocabulary.setdefault(piece, len(vocabulary))
    merges = [("▁", "t"), ("t", "h"), ("h", "e"), ("▁t", "he"), ("▁", "▁")]
    model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(SPECIAL[:3])
    tokenizer.add_tokens(SPECIAL[3:])
    return tokenizer


def sentencepiece() -> tokenizers.Tokenizer:
    links = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return byte_fallback(decoders.Sequence([*links, decoders.Strip(" ", 1, 0)]))


def sentencepiece_no_strip() -> tokenizers.Tokenizer:
    links = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return byte_fallback(decoders.Sequence(links))


def fallback_then_metaspace() -> tokenizers.Tokenizer:
    return byte_fallback(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))


def strip_two_blanks() -> tokenizers.Tokenizer:
    links = [decoders.Replace("▁", " "), decoders.ByteFallback()]
    return byte_fallback(decoders.Sequence([*links, decoders.Fuse(), decoders.Strip(" ", 2, 0)]))


def strip_each_token() -> tokenizers.Tokenizer:
    links = [decoders.ByteFallback(), decoders.Strip("▁", 1, 0)]
    return byte_fallback(decoders.Sequence(links))


def without_decoder() -> tokenizers.Tokenizer:
    vocabulary = {token: place for place, token in enumerate(["<unk>", "<s>", "</s>", "a", "b"])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.add_special_tokens(SPECIAL[:3])
    return tokenizer


def wordpiece() -> tokenizers.Tokenizer:
    """Its decoder cannot work on a stream."""
    vocabulary = {token: place for place, token in enumerate(["<unk>", "<s>", "</s>", "a", "##b"])}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL[:3])
    return tokenizer


BUILDERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    build.__name__: build
    for build in (
        byte_level,
        metaspace_unigram,
        sentencepiece,
        sentencepiece_no_strip,
        fallback_then_metaspace,
        strip_two_blanks,
        strip_each_token,
        without_decoder,
        wordpiece,
    )
}


@pytest.fixture(scope="session")
def build_tokenizer() -> Callable[[str], FileTokenizer]:
    """A tokenizer by the name of its builder, made once."""
    made: dict[str, FileTokenizer] = {}

    def build(name: str) -> FileTokenizer:
        if name not in made:
            made[name] = FileTokenizer(BUILDERS[name](), dict(CONFIG))
        return made[name]

    return build
