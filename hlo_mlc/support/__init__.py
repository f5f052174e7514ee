"""What every other package may rely on: errors and options."""
