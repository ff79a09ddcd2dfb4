"""The shape of a model: what a pass reads and computes, counted from the config."""

from dataclasses import dataclass

from transformers import AutoConfig, LlamaConfig, PretrainedConfig

from pipeline.common.paths import from_root
from pipeline.errors import UserError

SHAPES: dict[str, PretrainedConfig] = {
    "llama-3.1-8b": LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    )
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder with gated MLPs. Counts are of numbers, not bytes.

    Matrices only: norms and biases are thousandths of them, and of the embedding a pass reads a row for each token.
    """

    name: str
    n_layers: int
    hidden: int
    intermediate: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocabulary: int

    @classmethod
    def of(cls, name: str, config: PretrainedConfig) -> "Shape":
        """That of a model's config."""
        n_heads = config.num_attention_heads
        return cls(
            name=name,
            n_layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            n_heads=n_heads,
            n_kv_heads=getattr(config, "num_key_value_heads", None) or n_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // n_heads,
            vocabulary=config.vocab_size,
        )

    @property
    def attention_weights(self) -> int:
        """Of all layers: queries, keys, values and output."""
        return self.n_layers * sum(n_in * n_out for n_in, n_out in self._of_attention)

    @property
    def mlp_weights(self) -> int:
        """Of all layers: gate, up and down."""
        return self.n_layers * sum(n_in * n_out for n_in, n_out in self._of_mlp)

    @property
    def head_weights(self) -> int:
        """Of the output head, whether or not the embedding is the same matrix."""
        return self.hidden * self.vocabulary

    @property
    def attention_activations(self) -> int:
        """What the products with attention's weights take in and give out for a row, in all layers."""
        return self.n_layers * sum(map(sum, self._of_attention))

    @property
    def mlp_activations(self) -> int:
        """The same of the MLPs."""
        return self.n_layers * sum(map(sum, self._of_mlp))

    @property
    def head_activations(self) -> int:
        """The same of the head: mostly logits."""
        return self.hidden + self.vocabulary

    @property
    def kv_per_token(self) -> int:
        """Keys and values of a token, in all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim

    @property
    def attention_flops(self) -> int:
        """Operations for a row and a token that it sees, in all layers: two products, each a multiply and an add."""
        return 4 * self.n_layers * self.n_heads * self.head_dim

    @property
    def _of_attention(self) -> list[tuple[int, int]]:
        queries, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return [(self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden)]

    @property
    def _of_mlp(self) -> list[tuple[int, int]]:
        return [(self.hidden, self.intermediate)] * 2 + [(self.intermediate, self.hidden)]


def recorded_shape(model_name: str) -> Shape:
    """The shape of a run's model, from its config on this machine.

    Raises:
        UserError: it is not here.
    """
    folder = from_root(model_name)
    try:
        config = AutoConfig.from_pretrained(str(folder) if folder.is_dir() else model_name, local_files_only=True)
        return Shape.of(folder.name, config)
    except (OSError, ValueError, LookupError, AttributeError):
        raise UserError(
            f"{model_name}: no config of this model is here to tell its shape; name one with --shape"
        ) from None
