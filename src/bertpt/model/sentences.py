"""BERT with a score on the [CLS] before each sentence (Liu 2019, "Fine-tune BERT for Extractive Summarization")."""

from __future__ import annotations

from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.config.schema import Model as ModelConfig
from bertpt.model.bert import Bert, initialize_with_head


class BertForSentenceScoring(nn.Module):
    """Dropout and one linear output on the last hidden states: ``BertForTokenClassification`` with one label.

    Args:
        config: shape of the encoder.
        vocab_size: entries of the tokenizer.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, vocab_size, pooler=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)
        initialize_with_head(self, self.bert, config.initializer_range)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [K] of the marked tokens; of all tokens [T] where a batch marks none."""
        hidden = self.bert(batch)
        if batch.token_positions is not None:
            hidden = hidden.index_select(0, batch.token_positions)
        return self.classifier(self.dropout(hidden)).squeeze(-1)  # type: ignore[no-any-return]
