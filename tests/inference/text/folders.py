"""A small tokenizer with control tokens and a chat template, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CONTROL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'refused' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_tokenizer(folder: Path, template: str | None = TEMPLATE, marks: Sequence[str] = ()) -> int:
    """Write the tokenizer to `folder`; return the size of its vocabulary (the control tokens are 0 and 1, and then the
    `marks`).
    """
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*CONTROL, *marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(["the quick brown fox, the end of the text <im"] * 4, trainer)
    rust.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 0), ("<|im_end|>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=rust, eos_token="<|im_end|>", bos_token="<|im_start|>", pad_token="<|im_end|>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    return len(tokenizer)
