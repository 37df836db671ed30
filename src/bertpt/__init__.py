"""bertpt pre-trains BERT end to end: raw text in, a trained, evaluated, fine-tuned, exported model out.

Importing the package is cheap (no torch); each command's plain function lives in its own module.
"""

__version__ = "0.1.0"
