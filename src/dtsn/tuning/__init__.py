"""Search for loss weights and sizes of the network by validation."""
