"""What a run says of itself: metrics, TensorBoard, samples, speed."""
