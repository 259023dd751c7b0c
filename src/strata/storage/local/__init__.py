"""Objects as files below a directory, at the speed of the device."""
