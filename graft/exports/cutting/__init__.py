"""Files that stand alone, cut out of Graft's own modules and of plug-ins from outside."""
