"""Handles: the objects that users hold."""
