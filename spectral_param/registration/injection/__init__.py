"""What the class of a registered module is taught beyond torch's own mechanism."""
