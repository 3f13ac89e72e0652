"""σ of matrices that are tensors like any other: a few of them cheaply, their tail, and a cap that is certain."""
