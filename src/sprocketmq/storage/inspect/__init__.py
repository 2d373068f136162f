"""Reading and verifying the files of a store without opening it. Shares constants with the store, never logic."""
