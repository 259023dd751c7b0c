"""Starting the processes of a job on one machine, and restarting them."""
