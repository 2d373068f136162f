"""Request-reply: replies go through the broker to the connection of the producer that waits for them."""
