"""Live delivery: queues and groups at work on the state that the log gave them."""
