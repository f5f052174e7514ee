"""What differs from one kind of machine to another, a file for each."""
