"""Programs that tests start as processes of their own, to kill, stop and restart them."""
