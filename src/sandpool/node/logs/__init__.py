"""What containers write: taken from their FIFOs, kept in files of bounded size, given to who asks."""
