"""The proxy between region and worker: one loop, run as a thread or as a process."""
