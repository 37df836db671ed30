"""The network: BERT of 2018 with its pre-training heads."""
