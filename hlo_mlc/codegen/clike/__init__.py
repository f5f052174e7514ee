"""What printers of languages like C have in common."""
