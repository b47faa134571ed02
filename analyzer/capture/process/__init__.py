"""The child process that captures: started, supervised, and its end explained."""
