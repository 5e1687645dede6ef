"""This node as a member of its cluster: it joins, acts on metadata, and answers the other nodes."""
