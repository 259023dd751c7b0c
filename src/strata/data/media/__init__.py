"""Images and audio: decoded from bytes to arrays, in the threads that transform batches."""
