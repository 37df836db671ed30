"""BERT with a score for each sentence of a row [CLS] sentence [SEP] [CLS] sentence [SEP] ...

Liu 2019, "Fine-tune BERT for Extractive Summarization", scores the [CLS] before each; the mean over all tokens of the
sentence is the other way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.config.schema import Model as ModelConfig
from bertpt.model.bert import Bert, initialize_with_head


class BertForSentenceScoring(nn.Module):
    """Dropout and one linear output on the last hidden states: ``BertForTokenClassification`` with one label.

    Args:
        config: shape of the encoder.
        vocab_size: entries of the tokenizer.
        mean: a sentence's logit is the mean of those of its tokens, [CLS] and [SEP] among them; else that of its [CLS].
    """

    def __init__(self, config: ModelConfig, vocab_size: int, *, mean: bool) -> None:
        super().__init__()
        self.config, self.mean = config, mean
        self.bert = Bert(config, vocab_size, pooler=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)
        initialize_with_head(self, self.bert, config.initializer_range)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [K] of the sentences whose [CLS] is marked; of all tokens [T] where a batch marks none."""
        hidden, marked = self.bert(batch), batch.token_positions
        if marked is not None and not self.mean:
            hidden = hidden.index_select(0, marked)
        logits: Tensor = self.classifier(self.dropout(hidden)).squeeze(-1)
        if marked is None or not self.mean:
            return logits
        # Every row begins with a [CLS], and nothing else has its id: a token is of the sentence of the last one.
        sentence = (batch.input_ids == batch.input_ids[marked[0]]).cumsum(0) - 1
        sums = torch.zeros_like(logits).index_add(0, sentence, logits)
        counts = torch.zeros_like(logits).index_add(0, sentence, torch.ones_like(logits))
        return (sums / counts.clamp(min=1)).index_select(0, sentence.index_select(0, marked))
