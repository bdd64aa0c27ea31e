"""Tiny random Hugging Face models with a tokenizer, for tests."""

from pathlib import Path

from pp3shm.demo.vocabulary import Vocabulary

TEXT = "".join(f"Line {i} speaks of {i * i % 89}.\n\n" for i in range(400))
PADDED = 320  # ids of the models; the tokenizer has 300


def save_model(path: Path, seed: int, kind: str = "llama", **other: int) -> str:
    """A tiny random model, with a tokenizer of 300 ids beside it; its name."""
    import torch  # noqa: PLC0415 - only tests that make models need it
    import transformers  # noqa: PLC0415

    torch.manual_seed(seed)
    size = {"vocab_size": PADDED, "max_position_embeddings": 64, **other}
    if kind == "llama":
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.3,
            **size,
        )
        model = transformers.LlamaForCausalLM(config)
    elif kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=2, initializer_range=0.3, **size
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.MambaConfig(
            hidden_size=16, state_size=4, num_hidden_layers=1, **size
        )
        model = transformers.MambaForCausalLM(config)
    model.save_pretrained(path)
    save_tokenizer(path, TEXT)
    return str(path)


def save_tokenizer(path: Path, text: str) -> None:
    """A byte-level BPE of 300 ids, trained on the text."""
    import transformers  # noqa: PLC0415

    trained = Vocabulary.train(text, 300)._tokenizer
    transformers.PreTrainedTokenizerFast(tokenizer_object=trained).save_pretrained(path)
