"""What models learn: a task draws items and gives their gradient, the loop does the rest."""
