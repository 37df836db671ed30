"""BERT with a head on single tokens: a tag for the first piece of each word."""

from __future__ import annotations

from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.config.schema import Model as ModelConfig
from bertpt.model.bert import Bert, initialize_with_head
from bertpt.model.crf import LinearChainCrf


class BertForTokenClassification(nn.Module):
    """Dropout and a linear layer on tokens, as in transformers (no pooler), and a CRF beside it where wanted.

    Args:
        config: shape of the encoder.
        vocab_size: entries of the tokenizer.
        outputs: tags.
        dropout: of the head.
        crf: whether there is a CRF.
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, outputs: int, *, dropout: float = 0.1, crf: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, vocab_size, pooler=False)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(config.hidden_size, outputs)
        self.crf = LinearChainCrf(outputs) if crf else None
        initialize_with_head(self, self.bert, config.initializer_range)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [K, outputs] of the tokens at ``token_positions``; without these, of all tokens, [T, outputs]."""
        hidden = self.bert(batch)
        if batch.token_positions is not None:
            hidden = hidden.index_select(0, batch.token_positions)
        return self.classifier(self.dropout(hidden))  # type: ignore[no-any-return]
