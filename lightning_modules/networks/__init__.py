"""The networks that the paper compares, as modules of torch."""
