"""The decisions while a study runs: the controller, and its leases, lanes and queues."""
