"""What is known of a training run, and the pictures and the page made of it; needs no Lightning."""
