"""The server at work: queue, memory, steps, replicas and fleets on one clock."""
