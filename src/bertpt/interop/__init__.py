"""Exchange of models: the Hugging Face layout in and out, ONNX out."""
