"""Access control of brokers and nameservers: users, policies, and the guard that every request passes."""
