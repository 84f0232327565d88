"""Runs of the database in the trackers that people look at: TensorBoard, MLflow, Weights & Biases."""
