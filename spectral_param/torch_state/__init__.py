"""What torch is doing around a call: autocast, tracing, transforms, shards, writes. Knows no SVD."""
