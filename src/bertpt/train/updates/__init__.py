"""One update: which rows it takes, its losses, its rate, its step, and what to do with numbers gone bad."""
