"""The kinds of nodes that a program is made of."""
