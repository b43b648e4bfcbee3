"""Navigation: the paper's grid world."""
