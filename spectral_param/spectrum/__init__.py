"""What users read of singular values, and change in place."""
