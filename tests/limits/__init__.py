"""Limits of the machine: descriptors, memory, disks that fill up, and every errno there is."""
