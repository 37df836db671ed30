"""What lies in a corpus, a tokenizer and the rows made of them: figures and samples, for people and for programs."""
