"""Finding the fastest schedule of a kernel by measuring: spaces, studies, workers."""
