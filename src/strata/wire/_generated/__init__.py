"""Messages and stubs made from /proto by ``make generate``; nothing here is written by hand, and nothing may be."""
