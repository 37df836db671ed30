"""Using a trained model on text: filling in [MASK], vectors of words and sentences."""
