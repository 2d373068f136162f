"""Message traces of producers and consumers: which messages have one, the records, and the producer that writes them."""
