"""What benchmark tools measured of real servers: read into one form, replayed, compared, and written."""
