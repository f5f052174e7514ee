"""For a class of nests: whether a template applies, its parameters, its loops."""
