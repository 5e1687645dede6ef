"""How a partition is made of the rows of a backup."""
