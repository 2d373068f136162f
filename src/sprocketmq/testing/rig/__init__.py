"""Tools of SprocketMQ's own tests: a simulated disk, the crash explorer, damaged files, a virtual-time loop with a simulated network."""
