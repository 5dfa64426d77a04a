"""Acting: environment loops, policies over batches of environments, and fresh variables for them."""
