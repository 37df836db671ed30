"""BERT with a head on the pooled [CLS]: classes of a text or a pair, or one number."""

from __future__ import annotations

from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.config.schema import Model as ModelConfig
from bertpt.model.bert import Bert, initialize_with_head
from bertpt.model.dropout import Dropout


class BertForSequenceClassification(nn.Module):
    """Pooler, dropout, and a linear layer (as in transformers), or dense, ReLU and dropout before it.

    Args:
        config: shape of the encoder.
        vocab_size: entries of the tokenizer.
        outputs: classes, or 1 for a number.
        deep: width of the dense layer of the deeper head; ``None``: the linear one.
        dropout: of the head.
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, outputs: int, *, deep: int | None = None, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, vocab_size)
        self.dropout = Dropout(dropout)
        if deep is None:
            self.classifier: nn.Module = nn.Linear(config.hidden_size, outputs)
        else:
            self.classifier = nn.Sequential(
                nn.Linear(config.hidden_size, deep), nn.ReLU(), Dropout(dropout), nn.Linear(deep, outputs)
            )
        initialize_with_head(self, self.bert, config.initializer_range)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [B, outputs]."""
        assert self.bert.pooler is not None
        pooled = self.bert.pooler(self.bert(batch), batch)
        return self.classifier(self.dropout(pooled))  # type: ignore[no-any-return]
