"""Khan, Mohamed & Murphy (2012): VGPKMM."""
