"""Rows and files to load, made without the code under test."""
