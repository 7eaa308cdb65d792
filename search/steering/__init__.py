"""What decides while a study runs: the controller, and the leases, lanes and queues that it keeps."""
