"""Instructions per message, counted by Valgrind."""
