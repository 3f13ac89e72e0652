"""Convolutions as operators on images, tensors in and tensors out."""
