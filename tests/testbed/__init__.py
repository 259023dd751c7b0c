"""What tests stand on: real servers on free ports that are always stopped, and how to ask for a part."""
