"""Few numbers that fine-tune a trained network: ours beside those of peft, and what comes of them."""
