"""`nanofw compare`: run arms on the same traffic and say what differs, and how sure that is."""
