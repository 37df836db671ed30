"""bertpt pre-trains BERT end to end: raw text in, an exported, evaluated, fine-tuned model out.

Importing the package is cheap (no torch); each command's plain function lives in its own module.
"""

__version__ = "0.1.0"
