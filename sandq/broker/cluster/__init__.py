"""This node as a member of its cluster: it joins, does what metadata says, and answers the other nodes."""
