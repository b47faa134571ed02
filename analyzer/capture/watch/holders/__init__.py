"""Find the names of the user's program that hold tensors and other objects, and their lines."""
