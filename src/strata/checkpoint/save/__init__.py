"""From a training loop's state to a durable part: draft, staging copy, part file, and the handle of the save."""
