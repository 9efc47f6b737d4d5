"""Where the numbers of a run are shown: TensorBoard, Weights & Biases, MLflow. One file each, one protocol for all."""
