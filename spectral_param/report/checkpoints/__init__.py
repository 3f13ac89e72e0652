"""σ of the weights in a checkpoint file, tensor by tensor, and of two files side by side."""
