"""Files of a store as Arrow batches: planned in pieces, read piece by piece, without a broker."""
