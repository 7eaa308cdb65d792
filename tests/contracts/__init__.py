"""Tests of what a plug-in keeps, packaged or from outside."""
