"""The same for GPUs."""
