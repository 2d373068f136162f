"""The key index: key hashes, its files, following the log, exact matches."""
