"""What all rooms of a partition stand on: its rows and their keys, the view that they are changed through, heaps."""
