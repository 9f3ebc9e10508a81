"""What the other packages share: environments and tables, journals of measurements, counted operations."""
