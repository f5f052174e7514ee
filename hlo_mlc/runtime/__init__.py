"""What runs compiled kernels: the native library, the variant table, the object cache."""
